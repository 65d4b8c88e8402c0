//! What `top` shows, and what keys change; time and the store's answers are arguments.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use leasehold::{Fence, HolderInfo, Key, Listing, LockInfo};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use tokio::time::Instant;

use crate::cli::Sort;

/// The number of digits of a fence that are not typed by accident.
const DIGITS_MIN: usize = 4;

/// A lock at the time of the last look.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) info: LockInfo,
    at: Instant,
}

impl Seen {
    /// How long it has been held, and the rest of the lease, as of now.
    pub(super) fn times(&self, holder: &HolderInfo, now: Instant) -> (Duration, Duration) {
        let since = now.saturating_duration_since(self.at);
        (holder.held_for.saturating_add(since), holder.remaining.saturating_sub(since))
    }

    /// All that is known, with the holders' times as they are by now.
    pub(super) fn by_now(&self, now: Instant) -> LockInfo {
        let mut info = self.info.clone();
        for holder in &mut info.holders {
            (holder.held_for, holder.remaining) = self.times(holder, now);
        }
        info
    }
}

/// What is on the screen.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Mode {
    List,
    /// The filter is being typed.
    Filter,
    /// One lock with all that is known, scrolled so far.
    Details(u16),
    /// Digits are being typed of the fence of the holder that is to lose the lock.
    Release(String),
}

/// What a key asks for that the model can't do itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Action {
    None,
    Quit,
    Suspend,
    Release(Key, Fence),
}

#[derive(Debug)]
pub(super) struct Model {
    locks: HashMap<Key, Seen>,
    /// The names of those that the filter lets through, sorted.
    order: Vec<Key>,
    /// The longest that each lease was seen to have left, which is about its length.
    lengths: HashMap<Fence, Duration>,
    pub(super) unreadable: usize,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) message: Option<String>,
    pub(super) listed_at: Option<Instant>,
    begun: Instant,
    /// The place of the selected lock, and of the first that is shown.
    pub(super) selected: usize,
    pub(super) top: usize,
    /// How many are shown.
    height: usize,
}

impl Model {
    pub(super) fn new(sort: Sort, now: Instant) -> Self {
        Self {
            locks: HashMap::new(),
            order: Vec::new(),
            lengths: HashMap::new(),
            unreadable: 0,
            sort,
            reversed: false,
            filter: String::new(),
            mode: Mode::List,
            message: None,
            listed_at: None,
            begun: now,
            selected: 0,
            top: 0,
            height: 0,
        }
    }

    /// All locks that the store has.
    pub(super) fn listed(&mut self, listing: Listing, now: Instant) {
        let selected = self.selected().map(|seen| seen.info.key.clone());
        self.unreadable = listing.unreadable.len();
        let seen = |info: LockInfo| (info.key.clone(), Seen { info, at: now });
        self.locks = listing.locks.into_iter().map(seen).collect();
        let holders = self.locks.values().flat_map(|seen| &seen.info.holders);
        let lengths = holders.map(|holder| {
            let before = self.lengths.get(&holder.fence).copied().unwrap_or_default();
            (holder.fence, before.max(holder.remaining))
        });
        self.lengths = lengths.collect();
        self.listed_at = Some(now);
        self.message = None;
        self.arrange(selected.as_ref());
    }

    /// Some locks, as they are by now. Their places are kept until the next listing.
    pub(super) fn looked(&mut self, locks: Vec<(Key, Option<LockInfo>)>, now: Instant) {
        self.message = None;
        for (key, info) in locks {
            let Some(seen) = self.locks.get_mut(&key) else { continue };
            seen.at = now;
            match info {
                Some(info) => seen.info = info,
                None => {
                    seen.info.holders.clear();
                    seen.info.waiters.clear();
                    seen.info.closed_for = None;
                }
            }
            for holder in &seen.info.holders {
                let length = self.lengths.entry(holder.fence).or_default();
                *length = holder.remaining.max(*length);
            }
        }
    }

    pub(super) fn told(&mut self, text: String) {
        self.message = Some(text);
    }

    /// Filters and sorts again; the selection stays with its lock.
    fn arrange(&mut self, selected: Option<&Key>) {
        let passes = |seen: &&Seen| {
            let info = &seen.info;
            let owners = info.holders.iter().map(|holder| holder.owner.as_str());
            let waiters = info.waiters.iter().map(|waiter| waiter.owner.as_str());
            let mut texts = std::iter::once(info.key.as_str()).chain(owners).chain(waiters);
            texts.any(|text| text.contains(&self.filter))
        };
        let mut shown: Vec<&Seen> = self.locks.values().filter(passes).collect();
        // By name where they are alike, so that nothing jumps.
        shown.sort_unstable_by(|a, b| a.info.key.cmp(&b.info.key));
        let holders =
            |seen: &Seen, of: fn(&HolderInfo) -> Duration| seen.info.holders.iter().map(of).max();
        match self.sort {
            Sort::Name => {}
            Sort::Held => {
                shown.sort_by_key(|seen| Reverse(holders(seen, |holder| holder.held_for)));
            }
            Sort::Left => {
                let left = |seen: &&Seen| {
                    let left = seen.info.holders.iter().map(|holder| holder.remaining).min();
                    left.unwrap_or(Duration::MAX)
                };
                shown.sort_by_key(left);
            }
            Sort::Waiting => shown.sort_by_key(|seen| Reverse(seen.info.waiting())),
        }
        if self.reversed {
            shown.reverse();
        }
        self.order = shown.into_iter().map(|seen| seen.info.key.clone()).collect();
        let place = selected.and_then(|key| self.order.iter().position(|other| other == key));
        self.select(place.unwrap_or(self.selected));
    }

    fn select(&mut self, place: usize) {
        self.selected = place.min(self.order.len().saturating_sub(1));
        self.show(self.height);
    }

    /// Says how many are shown, and scrolls so that the selected one is among them.
    pub(super) fn show(&mut self, height: usize) {
        self.height = height;
        let last_top = self.selected;
        let first_top = (self.selected + 1).saturating_sub(height);
        self.top = self.top.clamp(first_top.min(last_top), last_top);
    }

    /// Those on the screen.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &Seen)> {
        let shown = self.order.iter().enumerate().skip(self.top).take(self.height);
        shown.filter_map(|(place, key)| Some((place, self.locks.get(key)?)))
    }

    /// All that the filter lets through.
    pub(super) fn all(&self) -> impl Iterator<Item = &Seen> {
        self.order.iter().filter_map(|key| self.locks.get(key))
    }

    /// The names of those on the screen.
    pub(super) fn visible(&self) -> Vec<Key> {
        match self.mode {
            Mode::Details(_) | Mode::Release(_) => {
                self.selected().map(|seen| seen.info.key.clone()).into_iter().collect()
            }
            Mode::List | Mode::Filter => {
                self.rows().map(|(_, seen)| seen.info.key.clone()).collect()
            }
        }
    }

    pub(super) fn selected(&self) -> Option<&Seen> {
        self.locks.get(self.order.get(self.selected)?)
    }

    /// How many the filter lets through, of how many.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.order.len(), self.locks.len())
    }

    /// Which part of a lease's length is left.
    pub(super) fn part_left(&self, holder: &HolderInfo, left: Duration) -> f64 {
        let length = self.lengths.get(&holder.fence).copied().unwrap_or(left).max(left);
        if length.is_zero() { 0.0 } else { left.as_secs_f64() / length.as_secs_f64() }
    }

    /// For how long nothing was heard of the store.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.listed_at.unwrap_or(self.begun))
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                _ => Action::None,
            };
        }
        match self.mode.clone() {
            Mode::List => self.key_in_list(key.code),
            Mode::Filter => {
                self.key_in_filter(key.code);
                Action::None
            }
            Mode::Details(scrolled) => self.key_in_details(key.code, scrolled),
            Mode::Release(digits) => self.key_in_release(key.code, digits),
        }
    }

    fn key_in_list(&mut self, code: KeyCode) -> Action {
        let page = self.height.max(1);
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc => {
                self.filter.clear();
                self.arrange_again();
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected.saturating_add(1)),
            KeyCode::PageUp => self.select(self.selected.saturating_sub(page)),
            KeyCode::PageDown => self.select(self.selected.saturating_add(page)),
            KeyCode::Home | KeyCode::Char('g') => self.select(0),
            KeyCode::End | KeyCode::Char('G') => self.select(usize::MAX),
            KeyCode::Enter if self.selected().is_some() => self.mode = Mode::Details(0),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.arrange_again();
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.arrange_again();
            }
            KeyCode::Char('x') => self.begin_release(),
            _ => {}
        }
        Action::None
    }

    fn arrange_again(&mut self) {
        let selected = self.selected().map(|seen| seen.info.key.clone());
        self.arrange(selected.as_ref());
    }

    fn key_in_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::List;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) => self.filter.push(c),
            _ => return,
        }
        self.arrange_again();
    }

    fn key_in_details(&mut self, code: KeyCode, scrolled: u16) -> Action {
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc | KeyCode::Enter | KeyCode::Left => self.mode = Mode::List,
            KeyCode::Up | KeyCode::Char('k') => {
                self.mode = Mode::Details(scrolled.saturating_sub(1));
            }
            // The view knows how much there is.
            KeyCode::Down | KeyCode::Char('j') => {
                self.mode = Mode::Details(scrolled.saturating_add(1));
            }
            KeyCode::Char('x') => self.begin_release(),
            _ => {}
        }
        Action::None
    }

    fn begin_release(&mut self) {
        match self.selected() {
            Some(seen) if !seen.info.holders.is_empty() => self.mode = Mode::Release(String::new()),
            Some(_) => self.told("it has no holder".to_owned()),
            None => {}
        }
    }

    fn key_in_release(&mut self, code: KeyCode, mut digits: String) -> Action {
        match code {
            KeyCode::Char(c) if c.is_ascii_digit() && digits.len() < 20 => digits.push(c),
            KeyCode::Backspace => drop(digits.pop()),
            KeyCode::Enter => return self.confirm(&digits),
            KeyCode::Esc => {
                self.mode = Mode::List;
                return Action::None;
            }
            _ => {}
        }
        self.mode = Mode::Release(digits);
        Action::None
    }

    /// Takes the digits for the end of the fence of one of the holders.
    fn confirm(&mut self, digits: &str) -> Action {
        self.mode = Mode::List;
        let Some(seen) = self.selected() else { return Action::None };
        let meant = seen.info.holders.iter().map(|holder| holder.fence);
        let meant: Vec<Fence> = meant.filter(|fence| fence.to_string().ends_with(digits)).collect();
        match meant[..] {
            [fence] if digits.len() >= DIGITS_MIN => Action::Release(seen.info.key.clone(), fence),
            [] => {
                self.told("no holder's fence ends in that; nothing was done".to_owned());
                Action::None
            }
            _ => {
                self.told("type more digits of the fence; nothing was done".to_owned());
                Action::None
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use leasehold::WaiterInfo;
    use leasehold::store::{Kind, Mode as Held};

    use super::*;

    pub(in crate::cmd::top) fn lock(name: &str, fence: u64, held: u64, waiters: usize) -> LockInfo {
        let fence = Fence::from_value(fence).unwrap();
        let mut info = LockInfo::new(Key::new(name).unwrap(), Kind::Lock, fence);
        let (held, left) = (Duration::from_secs(held), Duration::from_secs(20));
        info.holders.push(HolderInfo::new(Held::Exclusive, fence, held, left));
        info.waiters.resize(waiters, WaiterInfo::new(Held::Exclusive, Duration::from_secs(1)));
        info
    }

    pub(in crate::cmd::top) fn model(locks: Vec<LockInfo>, height: usize) -> Model {
        let mut model = Model::new(Sort::Name, Instant::now());
        let mut listing = Listing::default();
        listing.locks = locks;
        model.listed(listing, Instant::now());
        model.show(height);
        model
    }

    fn names(model: &Model) -> Vec<&str> {
        model.rows().map(|(_, seen)| seen.info.key.as_str()).collect()
    }

    fn press(model: &mut Model, keys: &str) -> Action {
        let mut last = Action::None;
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '↓' => KeyCode::Down,
                c => KeyCode::Char(c),
            };
            last = model.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        last
    }

    #[test]
    fn only_what_is_on_the_screen_is_asked_for() {
        let locks = (0..1000).map(|n| lock(&format!("k{n:03}"), n + 1, n, 0)).collect();
        let mut model = model(locks, 3);
        assert_eq!(names(&model), ["k000", "k001", "k002"]);
        press(&mut model, "↓↓↓");
        assert_eq!(names(&model), ["k001", "k002", "k003"]);
        press(&mut model, "G");
        assert_eq!(names(&model), ["k997", "k998", "k999"]);
        assert_eq!(model.visible().len(), 3);
        press(&mut model, "\n");
        assert_eq!(model.visible(), [Key::new("k999").unwrap()]);
    }

    #[test]
    fn the_selection_stays_with_its_lock() {
        let mut model = model(vec![lock("b", 1, 1, 0), lock("c", 2, 2, 0)], 9);
        press(&mut model, "↓");
        let mut listing = Listing::default();
        listing.locks = vec![lock("a", 3, 1, 0), lock("b", 1, 1, 0), lock("c", 2, 2, 5)];
        model.listed(listing, Instant::now());
        assert_eq!(model.selected().unwrap().info.key.as_str(), "c");
        // By how long they are held, then by what is left, then by who waits.
        press(&mut model, "s");
        assert_eq!(names(&model), ["c", "a", "b"]);
        press(&mut model, "ss");
        assert_eq!(names(&model), ["c", "a", "b"]);
        press(&mut model, "r");
        assert_eq!(names(&model), ["b", "a", "c"]);
        press(&mut model, "/b");
        assert_eq!(names(&model), ["b"]);
        assert_eq!(press(&mut model, "\n\x1b"), Action::None);
        assert_eq!(names(&model).len(), 3, "the filter is gone first");
        assert_eq!(
            press(&mut model, "\x1b\x1b"),
            Action::None,
            "one who leaves the details twice stays"
        );
        assert_eq!(press(&mut model, "q"), Action::Quit);
    }

    #[test]
    fn a_lease_is_force_released_only_by_its_fence() {
        let mut model = model(vec![lock("a", 123_456_789, 1, 0)], 9);
        assert_eq!(press(&mut model, "x\n"), Action::None);
        assert_eq!(press(&mut model, "x789\n"), Action::None);
        assert_eq!(press(&mut model, "x1234\n"), Action::None);
        assert_eq!(press(&mut model, "x6789\x1b\n"), Action::None);
        press(&mut model, "\x1b");
        let released =
            Action::Release(Key::new("a").unwrap(), Fence::from_value(123_456_789).unwrap());
        assert_eq!(press(&mut model, "x6789\n"), released);
    }

    #[test]
    fn an_unused_lock_keeps_its_row_until_the_next_listing() {
        let mut model = model(vec![lock("a", 1, 1, 0), lock("b", 2, 1, 0)], 9);
        model.looked(vec![(Key::new("a").unwrap(), None)], Instant::now());
        assert_eq!(names(&model), ["a", "b"]);
        press(&mut model, "x");
        assert_eq!(model.message.as_deref(), Some("it has no holder"));
    }
}
