//! Puts the scripts together from their files.
//!
//! Each operation is one file in `scripts/`, whose header is its contract. Fragments are shared
//! between operations. A line `-- include: name` inserts one, once in a script.

pub(crate) mod asking;
pub(crate) mod call;
pub(crate) mod request;
pub(crate) mod unsent;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use leasehold_core::table::LockEntry;
use leasehold_core::{Bond, Fence, Place};

use crate::wire::forms::{
    ALL, CLIENT, FAR, HEARD, LINE, PLAIN, SHARER, Shape, VERSION, WAITER, WHOSE, form_size,
};

/// An operation's script, as the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    /// Sent if the server does not know the script yet.
    pub(crate) source: String,
    /// Sent otherwise: the SHA-1 of the source, in hexadecimal.
    pub(crate) digest: String,
}

impl Script {
    pub(crate) fn new(source: String) -> Self {
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { source, digest }
    }

    /// A script that consists of one file, without a clock.
    pub(crate) fn without_comments(file: &str) -> Self {
        let lines = file.lines().map(str::trim);
        let code: Vec<_> =
            lines.filter(|line| !line.is_empty() && !line.starts_with("--")).collect();
        Self::new(code.join("\n"))
    }
}

#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Script,
    pub(crate) acquire_all: Script,
    pub(crate) ask: Script,
    pub(crate) convert: Script,
    pub(crate) force_release: Script,
    pub(crate) inspect: Script,
    pub(crate) leave: Script,
    pub(crate) publish: Script,
    pub(crate) release: Script,
    pub(crate) renew: Script,
    pub(crate) set_limit: Script,
}

pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts::with(true, str::to_owned));

const FRAGMENTS: [(&str, &str); 25] = [
    ("begin", include_str!("../scripts/begin.lua")),
    ("clock", include_str!("../scripts/clock.lua")),
    ("commit", include_str!("../scripts/commit.lua")),
    ("crowd", include_str!("../scripts/crowd.lua")),
    ("in_time", include_str!("../scripts/in_time.lua")),
    ("grant", include_str!("../scripts/grant.lua")),
    ("join", include_str!("../scripts/join.lua")),
    ("line", include_str!("../scripts/line.lua")),
    ("look", include_str!("../scripts/look.lua")),
    ("noted", include_str!("../scripts/noted.lua")),
    ("only", include_str!("../scripts/only.lua")),
    ("part", include_str!("../scripts/part.lua")),
    ("prolong", include_str!("../scripts/prolong.lua")),
    ("read", include_str!("../scripts/read.lua")),
    ("remember", include_str!("../scripts/remember.lua")),
    ("rest", include_str!("../scripts/rest.lua")),
    ("seen", include_str!("../scripts/seen.lua")),
    ("shown", include_str!("../scripts/shown.lua")),
    ("state", include_str!("../scripts/state.lua")),
    ("sweep", include_str!("../scripts/sweep.lua")),
    ("tell", include_str!("../scripts/tell.lua")),
    ("time", include_str!("../scripts/time.lua")),
    ("wanted", include_str!("../scripts/wanted.lua")),
    ("wide", include_str!("../scripts/wide.lua")),
    ("wish", include_str!("../scripts/wish.lua")),
];

/// In µs, longer than any request is valid, whatever the delay with which its client read the
/// clock.
const REQUESTS_VALID_US: u64 = 10_000_000;

/// What the scripts write as `$NAME`: numbers, the forms of docs/wire.md, and their sizes.
static NAMES: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let number = |name, number: u64| (name, number.to_string());
    let form = |name, form: &str| (name, form.to_owned());
    let size = |name, form: &str| (name, form_size(form).to_string());
    HashMap::from([
        number("PLAIN_SIZE", form_size(PLAIN)),
        form("PLAIN_STATE", PLAIN),
        form("PLAIN_BODY", body(PLAIN)),
        ("PLAIN_FORM", format!("<{}", body(PLAIN))),
        number("PLAIN", Shape::Plain.byte()),
        size("LINE_SIZE", LINE),
        form("LINE_STATE", LINE),
        form("LINE_BODY", body(LINE)),
        ("LINE_FORM", format!("<{}", body(LINE))),
        number("LINE", Shape::Line.byte()),
        size("ALL_SIZE", ALL),
        form("ALL_BODY", body(ALL)),
        ("ALL_FORM", format!("<{}", body(ALL))),
        number("ALL", Shape::All.byte()),
        number("VERSION", VERSION),
        size("WAITER_SIZE", WAITER),
        form("WAITER", WAITER),
        size("SHARER_SIZE", SHARER),
        form("SHARER", SHARER),
        number("WAITS", b'w'.into()),
        number("SHARES", b's'.into()),
        form("HEARD", HEARD),
        form("PLACE", ">d"),
        form("SLOT", "<c1I"),
        form("GRANTED", "<c1c8IHdI"),
        form("FIRST", "<c1c8d"),
        form("CLIENT", CLIENT),
        size("WHOSE_SIZE", WHOSE),
        form("WHOSE", WHOSE),
        form("WANTED", "<dIIc1dIdBI"),
        form("IN_LINE", "<c8IdIddB"),
        form("AFTER", "<Hd"),
        form("END", "<c16dHIdB"),
        form("RENEWAL", "<c16dHdB"),
        form("TOKEN", "<c16"),
        form("LEAVING", "<c16B"),
        form("CONVERSION", "<c16dHc1dII"),
        form("MEANT", "<BHdI"),
        form("LIMIT", "<I"),
        form("SENT", "<I"),
        // Offsets in a state: the ends of the key's expiry and of the token, and the starts of what
        // follows the lease's end and the time of the grant.
        number("KEPT_END", 9),
        number("TOKEN_END", 25),
        number("ENDS_END", 34),
        number("GIVEN_END", 42),
        form("NO_END", &"\\0".repeat(8)),
        form("NOBODY", &"\\0".repeat(16)),
        // How many holders and queue positions one call visits: about half a millisecond.
        number("STEP", 256),
        // How much one call about several locks does. A lock that is free or has one holder counts
        // as one, at about 2 µs; any other counts as four.
        number("ROOM", 128),
        // Above all numbers of holders and permits, and below all bonds.
        number("BOND", Bond::LEAST),
        // Above all positions of preferred waiters.
        number("BEHIND", Place::BEHIND),
        // The moment from which fences count.
        number("ORIGIN", Fence::ORIGIN_UNIX_US),
        // Requests are valid for a shorter time, even if the client read the clock late.
        number("VALID", REQUESTS_VALID_US),
        // Later than all moments, and exact as a number.
        number("FAR", FAR),
        // How near a position must be to a range to extend it, and how many other ranges there are.
        number("SLACK", 1_024),
        number("RANGES", 8),
        form("RANGE", "<dd"),
        // How many positions the search for the next waiter visits.
        number("FURTHER", 4_096),
        // How many releases of sharers are remembered.
        number("REMEMBERED", LockEntry::ENDED_KEPT as u64),
    ])
});

/// The fields after a state's first byte.
fn body(form: &str) -> &str {
    form.get(2..).unwrap_or_default()
}

impl Scripts {
    /// Assembles the scripts, with or without their early exits; `change` edits each source line.
    fn with(exits: bool, change: impl Fn(&str) -> String) -> Self {
        let script = |file: &str| {
            let mut source = String::new();
            paste(file, exits, &change, &mut Vec::new(), &mut source);
            Script::new(source)
        };
        Self {
            acquire: script(include_str!("../scripts/acquire.lua")),
            acquire_all: script(include_str!("../scripts/acquire_all.lua")),
            ask: script(include_str!("../scripts/ask.lua")),
            convert: script(include_str!("../scripts/convert.lua")),
            force_release: script(include_str!("../scripts/force_release.lua")),
            inspect: script(include_str!("../scripts/inspect.lua")),
            leave: script(include_str!("../scripts/leave.lua")),
            publish: script(include_str!("../scripts/publish.lua")),
            release: script(include_str!("../scripts/release.lua")),
            renew: script(include_str!("../scripts/renew.lua")),
            set_limit: script(include_str!("../scripts/set_limit.lua")),
        }
    }
}

/// Appends a file without its comments, with the fragments that it is the first to name.
///
/// The lines between one that begins with `-- exit` and the next `-- end` are an early exit: a
/// quick way through a usual case. The result is the same without it, only slower.
fn paste<'a>(
    file: &'a str,
    exits: bool,
    change: &impl Fn(&str) -> String,
    pasted: &mut Vec<&'a str>,
    source: &mut String,
) {
    let mut left_out = false;
    for line in file.lines().map(str::trim) {
        if line.starts_with("-- exit") || line == "-- end" {
            left_out = !exits && line != "-- end";
        }
        if left_out {
            continue;
        }
        if let Some(name) = line.strip_prefix("-- include: ") {
            let fragment = FRAGMENTS.iter().find(|(known, _)| *known == name);
            if let Some((_, fragment)) = fragment.filter(|_| !pasted.contains(&name)) {
                pasted.push(name);
                paste(fragment, exits, change, pasted, source);
            }
        } else if !line.is_empty() && !line.starts_with("--") {
            source.push_str(&change(&named(line)));
            source.push('\n');
        }
    }
}

/// A line with its names replaced. Most lines have none, and every start of a program reads all
/// lines.
fn named(line: &str) -> Cow<'_, str> {
    let mut parts = line.split('$');
    let before = parts.next().unwrap_or_default();
    if before.len() == line.len() {
        return Cow::Borrowed(line);
    }
    let mut text = before.to_owned();
    for part in parts {
        let end = part.find(|c| !matches!(c, 'A'..='Z' | '_')).unwrap_or(part.len());
        let (name, after) = part.split_at(end);
        // A test finds the names that are none.
        text.push_str(NAMES.get(name).map_or("$", String::as_str));
        text.push_str(after);
    }
    Cow::Owned(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The one line that reads the server's clock.
    pub(crate) const CLOCK: &str = "local time = redis.call('TIME')";

    /// The start of the one line that compares a request's time limit with the real clock.
    const LATE: &str = "if not_after > 0 ";

    fn at_time_in(clock_key: &str, line: &str) -> String {
        match line {
            _ if line.starts_with(LATE) => "not_after = 0".to_owned(),
            CLOCK => format!("local time = redis.call('MGET', '{clock_key}:s', '{clock_key}:us')"),
            _ => line.to_owned(),
        }
    }

    impl Scripts {
        /// The same scripts, with the time read from a key.
        pub(crate) fn at_time_in(clock_key: &str) -> Self {
            Self::with(true, |line| at_time_in(clock_key, line))
        }

        /// The scripts without early exits, with the time read from a key.
        pub(crate) fn without_exits(clock_key: &str) -> Self {
            Self::with(false, |line| at_time_in(clock_key, line))
        }

        /// The same scripts, with another command for notifications, and the time read from a key
        /// if one is given.
        pub(crate) fn publishing_by(command: &str, clock_key: Option<&str>) -> Self {
            let publish = format!("'{command}'");
            Self::with(true, |line| {
                let line = line.replace("'PUBLISH'", &publish);
                match clock_key {
                    Some(clock_key) => at_time_in(clock_key, &line),
                    None => line,
                }
            })
        }

        fn all(&self) -> [&Script; 11] {
            let Self {
                acquire,
                acquire_all,
                ask,
                convert,
                force_release,
                inspect,
                leave,
                publish,
                release,
                renew,
                set_limit,
            } = self;
            [
                acquire,
                acquire_all,
                ask,
                convert,
                force_release,
                inspect,
                leave,
                publish,
                release,
                renew,
                set_limit,
            ]
        }
    }

    #[test]
    fn each_script_reads_the_clock_in_one_line_and_the_tested_ones_differ_in_it_alone() {
        let tested = Scripts::at_time_in("clock");
        for (real, tested) in SCRIPTS.all().into_iter().zip(tested.all()) {
            let differ: Vec<_> = real
                .source
                .lines()
                .zip(tested.source.lines())
                .filter(|(real, tested)| real != tested && !real.starts_with(LATE))
                .collect();
            assert_eq!(differ, [(CLOCK, "local time = redis.call('MGET', 'clock:s', 'clock:us')")]);
            assert_eq!(real.source.lines().count(), tested.source.lines().count());
            assert_eq!(real.source.matches("TIME").count(), 1);
            // Otherwise scripts that can't publish would differ from the real ones elsewhere as
            // well.
            let sent = real.source.matches("'PUBLISH'").count();
            assert_eq!(real.source.matches("PUBLISH").count(), sent);
        }
    }

    #[test]
    fn every_fragment_that_is_named_exists() {
        let files = SCRIPTS.all().map(|script| &script.source);
        assert!(files.iter().all(|source| !source.contains("include:") && !source.contains('$')));
        let named = [
            include_str!("../scripts/acquire.lua"),
            include_str!("../scripts/acquire_all.lua"),
            include_str!("../scripts/ask.lua"),
            include_str!("../scripts/convert.lua"),
            include_str!("../scripts/force_release.lua"),
            include_str!("../scripts/inspect.lua"),
            include_str!("../scripts/leave.lua"),
            include_str!("../scripts/publish.lua"),
            include_str!("../scripts/release.lua"),
            include_str!("../scripts/renew.lua"),
            include_str!("../scripts/set_limit.lua"),
        ]
        .into_iter()
        .chain(FRAGMENTS.map(|(_, fragment)| fragment))
        .flat_map(str::lines)
        .filter_map(|line| line.trim().strip_prefix("-- include: "));
        for name in named {
            assert!(FRAGMENTS.iter().any(|(known, _)| *known == name), "{name}");
        }
    }

    #[test]
    fn scripts_do_nothing_that_an_old_or_a_clustered_server_refuses() {
        for script in SCRIPTS.all() {
            assert!(!script.source.starts_with("#!"));
            for refused in ["replicate_commands", "KEYS'", "'SCAN'", "setresp", "math.random"] {
                assert!(!script.source.contains(refused), "{refused}");
            }
        }
    }
}
