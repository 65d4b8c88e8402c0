//! Draws `top`: columns that fit the terminal, a bar for each lease, no need of colour.

use leasehold::store::{Kind, escape};
use leasehold::{HolderInfo, LockInfo};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, Wrap};
use tokio::time::Instant;

use super::model::{Mode, Model, Seen};
use crate::cmd::show;
use crate::describe::short_mode;
use crate::duration;

/// What a column shows, from how wide a terminal on, and how wide it is. The first two have the
/// rest.
const COLUMNS: [(&str, u16, u16); 8] = [
    ("LOCK", 0, 0),
    ("HOLDER", 34, 0),
    ("MODE", 100, 9),
    ("HELD", 66, 10),
    ("LEFT", 0, 8),
    ("", 76, BAR),
    ("FENCE", 50, FENCE_END),
    ("LINE", 40, 5),
];
const BAR: u16 = 10;
/// A fence has its end alone where there is no room for all of it: what is typed to release it is
/// its last digits.
const FENCE_END: u16 = 8;
const FENCE: u16 = 19;
/// As wide as `  LOCK`.
const HEADING: u16 = 6;
const FENCE_FROM: u16 = 110;
const FENCE_COLUMN: usize = 6;

pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, place: &str, now: Instant) {
    let [title, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Line::from(headline(model, place, now)), title);
    match model.mode {
        Mode::List | Mode::Filter => list(frame, body, model, now),
        Mode::Details(_) | Mode::Release(_) => details(frame, body, model, now),
    }
    let width = frame.area().width;
    frame.render_widget(Line::from(footline(model, width)).style(Modifier::REVERSED), foot);
}

fn headline(model: &Model, place: &str, now: Instant) -> String {
    let (shown, all) = model.counts();
    let count = if shown == all { format!("{all}") } else { format!("{shown} of {all}") };
    let unreadable = match model.unreadable {
        0 => String::new(),
        n => format!(", {n} unreadable"),
    };
    let age = match model.listed_at {
        None => "asking".to_owned(),
        Some(_) => format!("listed {} ago", duration::show(model.age(now))),
    };
    let order = if model.reversed { ", reversed" } else { "" };
    format!(
        "leasehold {}: {count} in use{unreadable}, by {}{order}, {age}",
        escape::terminal(place),
        model.sort.name()
    )
}

fn footline(model: &Model, width: u16) -> String {
    if let Mode::Release(digits) = &model.mode {
        return format!(
            "force-release the holder whose fence ends in (4 digits or more): {digits}_"
        );
    }
    if let Mode::Filter = model.mode {
        return format!("filter: {}_", escape::terminal(&model.filter));
    }
    match (&model.message, &model.mode) {
        (Some(message), _) => escape::terminal(message).to_string(),
        (None, Mode::Details(_)) => "esc back  x release  q quit".to_owned(),
        (None, _) if model.filter.is_empty() => {
            let all = "q quit  enter details  / filter  s sort  r reverse  x release";
            let short = "q quit  enter more  x release  /  s  r";
            let fits = all.len() <= usize::from(width);
            if fits { all } else { short }.to_owned()
        }
        (None, _) => format!("filter: {}  esc all", escape::terminal(&model.filter)),
    }
}

fn list(frame: &mut Frame<'_>, area: Rect, model: &mut Model, now: Instant) {
    model.show(usize::from(area.height.saturating_sub(1)));
    let columns: Vec<usize> =
        (0..COLUMNS.len()).filter(|column| COLUMNS[*column].1 <= area.width).collect();
    let (mut longest_name, mut longest_holder) = (0, 0);
    let rows: Vec<_> = model
        .rows()
        .map(|(place, seen)| {
            let mut cells = cells(model, seen, now);
            if area.width < FENCE_FROM {
                cells[FENCE_COLUMN] = end_of(&cells[FENCE_COLUMN]);
            }
            // Seen also where the terminal shows nothing in reverse.
            let chosen = place == model.selected;
            cells[0].insert_str(0, if chosen { "> " } else { "  " });
            longest_name = longest_name.max(cells[0].chars().count());
            longest_holder = longest_holder.max(cells[1].chars().count());
            let style =
                if chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            let cells = columns.iter().map(|column| std::mem::take(&mut cells[*column]));
            Row::new(cells.collect::<Vec<_>>()).style(style)
        })
        .collect();
    let heading = columns.iter().map(|column| match column {
        0 => "  LOCK",
        column => COLUMNS[*column].0,
    });
    let heading = Row::new(heading.collect::<Vec<_>>()).style(Modifier::BOLD);
    let width = |column: usize| match column {
        FENCE_COLUMN if area.width >= FENCE_FROM => FENCE,
        column => COLUMNS[column].2,
    };
    let fixed: u16 = columns.iter().map(|column| width(*column)).sum();
    let gaps = u16::try_from(columns.len()).unwrap_or(u16::MAX).saturating_sub(1);
    let rest = area.width.saturating_sub(fixed).saturating_sub(gaps);
    let cells = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
    // A name has what it needs, and two thirds at most where the holder needs the others.
    let name = match columns.contains(&1) {
        false => rest,
        true => {
            let most = rest.saturating_sub(cells(longest_holder)).max(rest / 3 * 2);
            cells(longest_name).max(HEADING).min(most)
        }
    };
    let widths = columns.iter().map(|column| match column {
        0 => name,
        1 => rest.saturating_sub(name),
        column => width(*column),
    });
    frame.render_widget(Table::new(rows, widths).header(heading), area);
}

/// A fence where there is no room for all of it: the end.
fn end_of(fence: &str) -> String {
    let most = usize::from(FENCE_END);
    match fence.len().checked_sub(most) {
        None | Some(0) => fence.to_owned(),
        Some(_) => format!("…{}", &fence[fence.len() - (most - 1)..]),
    }
}

fn details(frame: &mut Frame<'_>, area: Rect, model: &mut Model, now: Instant) {
    let Some(seen) = model.selected() else { return };
    let text = show::description(&seen.by_now(now));
    let lines: Vec<Line<'_>> = text.lines().map(Line::from).collect();
    let last = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(area.height);
    let scrolled = match model.mode {
        Mode::Details(scrolled) => scrolled.min(last),
        _ => 0,
    };
    frame.render_widget(
        Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((scrolled, 0)),
        area,
    );
    if let Mode::Details(at) = &mut model.mode {
        *at = scrolled;
    }
}

/// What all columns say of a lock.
fn cells(model: &Model, seen: &Seen, now: Instant) -> [String; COLUMNS.len()] {
    let info = &seen.info;
    let none = String::new;
    let line = match info.waiting() {
        0 => none(),
        n => n.to_string(),
    };
    let key = info.key.to_string();
    let Some(holder) = longest(info) else {
        let (state, left) = match info.closed_for {
            Some(left) => ("(closed)", duration::show(left)),
            None => ("(free)", none()),
        };
        return [key, state.to_owned(), none(), none(), left, none(), none(), line];
    };
    let (held, left) = seen.times(holder, now);
    let others = match info.holders.len() {
        1 => none(),
        n => format!(" +{}", n.saturating_sub(1)),
    };
    [
        key,
        format!("{}{others}", holder.owner),
        mode(info, holder),
        duration::show(held),
        duration::show(left),
        bar(model.part_left(holder, left)),
        holder.fence.to_string(),
        line,
    ]
}

/// Of several holders the one that has it for longest stands for all.
fn longest(info: &LockInfo) -> Option<&HolderInfo> {
    info.holders.iter().max_by_key(|holder| holder.held_for)
}

fn mode(info: &LockInfo, holder: &HolderInfo) -> String {
    match info.kind {
        Kind::Semaphore { limit } => format!("{}/{limit}", info.permits_held()),
        _ => short_mode(holder),
    }
}

/// `#####.....`, as much of it full as is left.
fn bar(part: f64) -> String {
    let mut bar = String::new();
    for tenth in 0..BAR {
        bar.push(if f64::from(tenth) < part * f64::from(BAR) { '#' } else { '.' });
    }
    bar
}

/// All locks as a table for paper.
pub(super) fn table(model: &Model, now: Instant) -> Vec<Vec<String>> {
    let mut rows = vec![COLUMNS.map(|(name, ..)| name.to_owned()).into()];
    rows.extend(model.all().map(|seen| {
        cells(model, seen, now)
            .map(|cell| if cell.is_empty() { "-".to_owned() } else { cell })
            .into()
    }));
    for row in &mut rows {
        let row: &mut Vec<String> = row;
        // The bar: what is the whole length is not known from one look.
        row.remove(5);
    }
    rows
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::model::tests::{lock, model};
    use super::*;
    use crate::describe::tests::{hostile, steers};

    fn drawn(model: &mut Model, width: u16, height: u16) -> String {
        let now = model.listed_at.unwrap();
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model, "redis://h", now)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let lines = buffer.content().chunks(usize::from(width));
        let lines = lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect());
        lines.collect::<Vec<String>>().join("\n")
    }

    #[test]
    fn columns_go_as_the_terminal_gets_narrow_and_the_name_stays() {
        let mut model = model(vec![lock("reports/daily", 77, 65, 3)], 9);
        for (width, there, gone) in [
            (
                120,
                &["reports/daily", "1m 5s", "##########", "exclusive", "77", "LINE"][..],
                &[][..],
            ),
            (80, &["reports/daily", "1m 5s", "##########", "77", "LINE"], &["exclusive"]),
            (40, &["reports/daily", "20s", "HOLDER", "LINE"], &["##", "1m 5s", "77"]),
            (24, &["reports/daily", "20s"], &["LINE", "HOLDER"]),
        ] {
            let text = drawn(&mut model, width, 6);
            for part in there {
                assert!(text.contains(part), "{part:?} is not in\n{text}");
            }
            for part in gone {
                assert!(!text.contains(part), "{part:?} is in\n{text}");
            }
            assert!(text.contains("> "), "{text}");
        }
    }

    #[test]
    fn the_holder_and_the_end_of_the_fence_matter_more_than_wide_names() {
        let held_by = |holder: &str, name: &str| {
            let mut info = lock(name, 1_234_567_890_123_456_789, 65, 3);
            info.holders[0].owner = leasehold::OwnerName::new(holder).unwrap();
            info
        };
        let holder = "web_1234".to_owned();
        let short = held_by(&holder, "reports/daily");
        let mut model = model(vec![short], 9);
        for (width, parts) in [
            (40, &[&*holder, "LINE", "x release"][..]),
            (60, &[&holder, "…3456789", "x release"]),
            (80, &[&holder, "…3456789", "####", "x release"]),
            (120, &[&holder, "1234567890123456789", "####"]),
        ] {
            let text = drawn(&mut model, width, 6);
            for part in parts {
                assert!(text.contains(part), "{part:?} is not in\n{text}");
            }
            assert!(text.contains("reports/daily"), "{text}");
        }
        // Nor does one long name take all.
        let long = "x".repeat(200);
        let mut model = super::super::model::tests::model(vec![held_by(&holder, &long)], 9);
        let text = drawn(&mut model, 40, 6);
        assert!(text.contains("xx web_123"), "{text}");
    }

    #[test]
    fn no_size_of_a_terminal_is_too_small() {
        let mut model = model((1..50).map(|n| lock(&format!("k{n}"), n, n, 0)).collect(), 9);
        for key in [None, Some(KeyCode::End), Some(KeyCode::Enter), Some(KeyCode::Char('x'))] {
            if let Some(code) = key {
                model.key(KeyEvent::new(code, KeyModifiers::NONE));
            }
            for (width, height) in [(1, 1), (3, 2), (10, 3), (500, 1), (2, 100)] {
                drawn(&mut model, width, height);
            }
        }
    }

    #[test]
    fn what_strangers_wrote_can_not_steer_the_terminal_of_who_watches() {
        let mut model = model(vec![hostile()], 9);
        let list = drawn(&mut model, 150, 20);
        model.key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
        for text in [list, drawn(&mut model, 150, 20)] {
            assert!(!steers(&text), "{text:?}");
            assert!(text.contains("web\\u{1b}[2J"), "{text}");
        }
    }

    #[test]
    fn a_bar_is_as_full_as_the_lease() {
        assert_eq!(bar(1.0), "##########");
        assert_eq!(bar(0.31), "####......");
        assert_eq!(bar(0.0), "..........");
    }
}
