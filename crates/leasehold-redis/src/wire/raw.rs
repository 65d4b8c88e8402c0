//! Describes for people what is stored for a lock, field by field.
//!
//! A token is a secret that proves a hold. So only its fingerprint is shown, and unreadable data in
//! its place is left out.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_core::{Mode, Token, escape};

use crate::wire::forms::{FAR, Packed, SHARER, Shape, WAITER, form_size};
use crate::wire::spelling::{fence, read_about, unix_parts};
use crate::wire::stored::{Holder, State, Unread, Waiter, read_sharer, read_waiter};

/// How much of an unreadable value is shown.
const SHOWN_MAX: usize = 512;

const TOKEN_BYTES: usize = 16;

type Fields = HashMap<Vec<u8>, Vec<u8>>;

/// The purpose of a field, by its name, in display order.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Field<'a> {
    State,
    About,
    Place(u64),
    Slot(u32),
    Token(&'a [u8]),
    Ended,
    Other(&'a [u8]),
}

impl<'a> Field<'a> {
    fn of(name: &'a [u8]) -> Self {
        match name {
            b"state" => Self::State,
            b"about" => Self::About,
            b"ended" => Self::Ended,
            [b'@', number @ ..] if number.len() == 4 => {
                Packed(number).int().map_or(Self::Other(name), Self::Slot)
            }
            place if place.len() == 8 => {
                let turned: Vec<u8> = place.iter().rev().copied().collect();
                Packed(&turned).double().map_or(Self::Other(name), Self::Place)
            }
            token if token.len() == TOKEN_BYTES => Self::Token(token),
            _ => Self::Other(name),
        }
    }

    fn name(self) -> String {
        match self {
            Self::State => "state".to_owned(),
            Self::About => "about".to_owned(),
            Self::Ended => "ended".to_owned(),
            Self::Place(place) => format!(">{place}"),
            Self::Slot(number) => format!("@{number}"),
            Self::Token(token) => fingerprint(token),
            Self::Other(name) => bytes(name),
        }
    }
}

/// One line of text for each field of a lock, after a line about the key's expiry; empty for a free
/// lock. `left` is the answer to `PTTL`.
pub(crate) fn lines(key: &str, clock: u64, left: i64, fields: &Fields) -> Vec<String> {
    if fields.is_empty() {
        return Vec::new();
    }
    let expires = u64::try_from(left).map_or_else(
        |_| "never expires".to_owned(),
        |left| format!("expires in {}", length(left.saturating_mul(1_000))),
    );
    let state = fields.get(&b"state"[..]).and_then(|state| State::read(state).ok());
    // Permits can also be read without a state, which has their limit.
    let limit = state.as_ref().map_or(u32::MAX, |state| state.limit.max(1));
    let now = clock.saturating_add(state.map_or(0, |state| state.ahead(clock)));
    let mut all: Vec<_> = fields.iter().map(|(name, value)| (Field::of(name), value)).collect();
    all.sort_unstable();
    let told = all.into_iter().map(|(field, value)| {
        let said = match field {
            _ if value.is_empty() && field != Field::State => {
                "empty, which is as good as not there".to_owned()
            }
            Field::State => state_words(value, clock),
            Field::About => about_words(value),
            Field::Place(_) | Field::Slot(_) => token_words(value),
            Field::Token(token) => record_words(token, value, limit, now),
            Field::Ended => ended_words(value),
            Field::Other(_) => format!("unreadable, no field of a lock: {}", bytes(value)),
        };
        format!("{}  {said}", field.name())
    });
    std::iter::once(format!("key  {} {expires}", escape::terminal(key))).chain(told).collect()
}

/// Values with their names.
struct NamedValues {
    text: String,
    now: u64,
}

impl NamedValues {
    fn new(what: &str, now: u64) -> Self {
        Self { text: what.to_owned(), now }
    }

    fn say(&mut self, name: &str, value: impl std::fmt::Display) -> &mut Self {
        self.text.push_str(&format!(" {name}={value}"));
        self
    }

    /// Adds a value unless it is 0.
    fn say_more(&mut self, name: &str, value: u64) -> &mut Self {
        if value > 0 {
            self.say(name, value);
        }
        self
    }

    /// Adds a moment other than 0; the end of time is shown as "never".
    fn moment(&mut self, name: &str, at: u64) -> &mut Self {
        match at {
            0 | FAR => self,
            _ if at > self.now => self.say(name, format!("{at} (in {})", length(at - self.now))),
            _ => self.say(name, format!("{at} ({} ago)", length(self.now - at))),
        }
    }

    fn length(&mut self, name: &str, micros: u64) -> &mut Self {
        self.say(name, format!("{micros} ({})", length(micros)))
    }

    fn mode(&mut self, mode: Mode) -> &mut Self {
        match mode {
            Mode::Exclusive => self.say("mode", 'x'),
            Mode::Shared => self.say("mode", 's'),
            Mode::Permits { count, .. } => self.say("mode", 'p').say("permits", count),
            Mode::Joint(bond) => self.say("mode", 'j').say("bond", bond.number()),
            _ => self,
        }
    }
}

fn state_words(state: &[u8], clock: u64) -> String {
    let read = match State::read(state) {
        Ok(read) => read,
        // An unreadable state may contain a token anywhere.
        Err(unread) => {
            let why = match unread {
                Unread::Version(version) => format!("of version {version}"),
                Unread::Damaged => "damaged".to_owned(),
            };
            let first = bytes(state.get(..1).unwrap_or_default());
            return format!("unreadable, {why}: {} bytes, the first is {first}", state.len());
        }
    };
    let now = clock.saturating_add(read.ahead(clock));
    let State {
        kept,
        token,
        ends,
        given,
        following,
        epoch,
        waiters,
        ranges,
        longest,
        soonest,
        offset,
        asked,
        closed,
        limit,
        walked,
        least_window,
        next_places: [next_preferred, next_other],
        holders,
        taken,
        first_end,
        nearest,
        cursor,
        least_end,
    } = read;
    let is = |shape: Shape| state.first().is_some_and(|first| u64::from(*first) == shape.byte());
    let shape = if is(Shape::Plain) {
        "plain"
    } else if is(Shape::Line) {
        "line"
    } else {
        "all"
    };
    let mut words = NamedValues::new(shape, clock);
    words.moment("kept", kept);
    words.now = now;
    if let Some(token) = token {
        words.say("token", fingerprint(token.as_bytes()));
    }
    words.moment("ends", ends);
    if ends > 0 || holders > 0 || waiters > 0 || closed > 0 {
        words.moment("given", given);
    }
    match following.checked_sub(1).and_then(|last| fence(epoch, last)) {
        Some(last) => words.say("next", format!("{following} (last fence {last})")),
        None => words.say("next", following),
    };
    words.say_more("epoch", epoch);
    if waiters > 0 {
        words.say("waiters", waiters);
    }
    for (head, tail) in ranges {
        let to = if tail > head { format!("-{tail}") } else { String::new() };
        words.say("places", format!("{head}{to}"));
    }
    if waiters > 0 {
        words.length("longest", longest).moment("soonest", soonest);
    }
    if offset > 0 {
        words.length("offset", offset);
    }
    if asked {
        words.say("asked", "yes");
    }
    words.moment("closed", closed).say_more("limit", limit.into());
    if is(Shape::All) {
        words.say_more("next_preferred", next_preferred).say_more("next_other", next_other);
    }
    words.say_more("walked", walked).moment("least_window", least_window);
    if holders > 0 {
        words.say("holders", holders).say("taken", taken).moment("first_end", first_end);
        words.say_more("nearest", nearest.into()).say_more("cursor", cursor.into());
        words.moment("least_end", least_end);
    }
    words.text
}

fn about_words(about: &[u8]) -> String {
    match read_about(about) {
        Some(_) => text(about),
        None => {
            format!("unreadable, not SECONDS MICROS COUNT HOLDS OWNER METADATA: {}", bytes(about))
        }
    }
}

fn record_words(token: &[u8], record: &[u8], limit: u32, now: u64) -> String {
    let none = Token::from_bytes([0; 16]);
    let rest = |size: usize| text(record.get(size..).unwrap_or_default());
    let size = |form: &str| usize::try_from(form_size(form)).unwrap_or(usize::MAX);
    match record.first() {
        Some(b'w') => {
            let Some(waiter) = read_waiter(none, record, limit) else {
                return unread("a waiter's", record);
            };
            let Waiter {
                place, seen, heartbeat, window, behind, arrived, block, mode, ticket, ..
            } = waiter;
            let channel = &waiter.channel;
            let mut words = NamedValues::new("waiter", now);
            words.mode(mode).say("place", place).moment("seen", seen);
            words.say_more("heartbeat", heartbeat.into()).length("window", window);
            words.say_more("behind", behind.into()).moment("arrived", arrived);
            words.say("count", block).say("ticket", ticket);
            words.say("channel", escape::terminal(channel));
            words.say("label", rest(size(WAITER).saturating_add(channel.len())));
            words.text
        }
        Some(b's') => {
            let Some((number, holder)) = read_sharer(none, record, limit) else {
                return unread("a sharer's", record);
            };
            let Holder { mode, fences, expires, .. } = holder;
            let (epoch, first) = unix_parts(fences.first());
            let mut words = NamedValues::new("sharer", now);
            words.mode(mode).say("number", number).moment("ends", expires);
            words
                .say("first", format!("{first} (fence {})", fences.first()))
                .say_more("epoch", epoch);
            words.say("count", fences.count()).say("about", rest(size(SHARER)));
            words.text
        }
        _ => unread(&format!("neither w nor s, of {}", fingerprint(token)), record),
    }
}

fn unread(what: &str, record: &[u8]) -> String {
    format!("unreadable, {what} record: {}", bytes(record))
}

fn token_words(token: &[u8]) -> String {
    match token.len() {
        TOKEN_BYTES => fingerprint(token),
        size => format!("unreadable, a token has 16 bytes: {size} bytes"),
    }
}

fn ended_words(ended: &[u8]) -> String {
    let (tokens, rest) = ended.as_chunks::<TOKEN_BYTES>();
    let mut words: Vec<_> = tokens.iter().map(|token| fingerprint(token)).collect();
    if !rest.is_empty() {
        words.push(format!("unreadable, a token has 16 bytes: {} bytes", rest.len()));
    }
    words.join(" ")
}

fn fingerprint(token: &[u8]) -> String {
    let token = token.try_into().map(Token::from_bytes);
    token.map_or_else(|_| "#".to_owned(), |token| format!("#{}", token.fingerprint()))
}

fn text(text: &[u8]) -> String {
    escape::terminal(&String::from_utf8_lossy(text)).to_string()
}

/// Bytes in the notation of Rust and Python.
fn bytes(bytes: &[u8]) -> String {
    match bytes.get(..SHOWN_MAX) {
        Some(first) if bytes.len() > SHOWN_MAX => {
            format!("b\"{}\" and {} bytes more", first.escape_ascii(), bytes.len() - SHOWN_MAX)
        }
        _ => format!("b\"{}\"", bytes.escape_ascii()),
    }
}

fn length(micros: u64) -> String {
    format!("{:.1?}", Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::forms::Pack as _;

    const NOW: u64 = 1_795_378_205_340_934;

    fn shown(fields: &[(&[u8], &[u8])]) -> Vec<String> {
        let fields = fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        lines("leasehold:{a}", NOW, 1_500, &fields)
    }

    fn plain(token: [u8; 16]) -> Vec<u8> {
        let mut state = Vec::new();
        let kept = NOW + 1_500_000;
        state.byte(0x11).double(kept).bytes(&token).double(NOW + 500_000).double(NOW);
        state.double(NOW + 17).short(3);
        state
    }

    #[test]
    fn a_held_lock_is_shown_in_words() {
        let state = plain([7; 16]);
        let told = shown(&[
            (b"about", b"1795378205 340934 17 1 web-7 nightly%20build"),
            (b"state", &state),
        ]);
        let token = Token::from_bytes([7; 16]).fingerprint();
        let fence = fence(3, NOW + 16).unwrap();
        assert_eq!(
            told,
            [
                "key  leasehold:{a} expires in 1.5s".to_owned(),
                format!(
                    "state  plain kept=1795378206840934 (in 1.5s) token=#{token} ends=1795378205840934 (in 500.0ms) \
                     given=1795378205340934 (0.0ns ago) next=1795378205340951 (last fence {fence}) epoch=3"
                ),
                "about  1795378205 340934 17 1 web-7 nightly%20build".to_owned(),
            ]
        );
        let set_back =
            lines("a", NOW - 1_000_000, -1, &HashMap::from([(b"state".to_vec(), state.clone())]));
        assert!(set_back[1].contains("ends=1795378205840934 (in 500.0ms)"), "{set_back:?}");
        let key = lines("a", NOW, -1, &HashMap::from([(b"state".to_vec(), state)]))[0].clone();
        assert_eq!(key, "key  a never expires");
        assert!(shown(&[]).is_empty());
    }

    #[test]
    fn an_unreadable_record_is_shown_with_the_reason_and_without_tokens() {
        let token = *b"SECRETsecret0123";
        let cut = |bytes: &[u8]| bytes[..bytes.len() - 1].to_vec();
        let state = plain(token);
        let longer = [&token[..], b"SECRET"].concat();
        let place = [&[0x41][..], &[0; 7]].concat();
        for (name, value, why) in [
            (&b"state"[..], cut(&state), "unreadable, damaged: 50 bytes, the first is b\"\\x11\""),
            (b"state", state[2..].to_vec(), "unreadable, of version"),
            (b"state", state[..20].to_vec(), "unreadable, damaged: 20 bytes"),
            (b"state", [&[0x21][..], &state[1..]].concat(), "unreadable, of version 2: 51 bytes"),
            (b"state", Vec::new(), "unreadable, damaged: 0 bytes"),
            (
                b"about",
                b"x\x1b[2J".to_vec(),
                "unreadable, not SECONDS MICROS COUNT HOLDS OWNER METADATA: b\"x\\x1b[2J\"",
            ),
            (b"@\x07\0\0\0", cut(&token), "unreadable, a token has 16 bytes: 15 bytes"),
            (&place, cut(&token), ">131072  unreadable, a token has 16 bytes: 15 bytes"),
            (&place, token.to_vec(), ">131072  #"),
            (b"ended", longer, "unreadable, a token has 16 bytes: 6 bytes"),
            (&token, b"w\0".to_vec(), "unreadable, a waiter's record: b\"w\\x00\""),
            (&token, b"s".to_vec(), "unreadable, a sharer's record: b\"s\""),
            (&token, b"?".to_vec(), "unreadable, neither w nor s"),
            (&token, Vec::new(), "empty"),
            (
                b"\xffnote",
                b"\x1b[2J".to_vec(),
                "b\"\\xffnote\"  unreadable, no field of a lock: b\"\\x1b[2J\"",
            ),
            (b"note", vec![b'x'; 600], "x\" and 88 bytes more"),
        ] {
            let told = shown(&[(name, &value)]).join("\n");
            assert!(told.contains(why), "{told}");
            assert!(!told.to_lowercase().contains("secret") && !told.contains('\x1b'), "{told}");
        }
    }
}
