//! Puts the scripts together from their files.
//!
//! Each operation is one file in `scripts/`, with a header that is its contract. What operations
//! share stands in fragments, which are pasted in where a line says `-- include: name`, once in a
//! script.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::LazyLock;

use leasehold_core::table::LockEntry;
use leasehold_core::{Bond, Fence, Place};

use crate::forms::{
    ALL, END, FAR, HEARD, LINE, PLAIN, RENEWAL, SHARER, Shape, VERSION, WAITER, form_size,
};

/// One operation as the server knows it.
#[derive(Debug)]
pub(crate) struct Script {
    /// What is sent when the server does not know it yet.
    pub(crate) source: String,
    /// What is sent otherwise: the SHA-1 of the source, in hexadecimal.
    pub(crate) digest: String,
}

impl Script {
    pub(crate) fn new(source: String) -> Self {
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { source, digest }
    }

    /// A file that needs no other, and no clock.
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
    ("begin", include_str!("scripts/begin.lua")),
    ("clock", include_str!("scripts/clock.lua")),
    ("commit", include_str!("scripts/commit.lua")),
    ("crowd", include_str!("scripts/crowd.lua")),
    ("finish", include_str!("scripts/finish.lua")),
    ("in_time", include_str!("scripts/in_time.lua")),
    ("grant", include_str!("scripts/grant.lua")),
    ("join", include_str!("scripts/join.lua")),
    ("line", include_str!("scripts/line.lua")),
    ("look", include_str!("scripts/look.lua")),
    ("only", include_str!("scripts/only.lua")),
    ("part", include_str!("scripts/part.lua")),
    ("prolong", include_str!("scripts/prolong.lua")),
    ("read", include_str!("scripts/read.lua")),
    ("remember", include_str!("scripts/remember.lua")),
    ("rest", include_str!("scripts/rest.lua")),
    ("seen", include_str!("scripts/seen.lua")),
    ("shown", include_str!("scripts/shown.lua")),
    ("state", include_str!("scripts/state.lua")),
    ("sweep", include_str!("scripts/sweep.lua")),
    ("tell", include_str!("scripts/tell.lua")),
    ("time", include_str!("scripts/time.lua")),
    ("wanted", include_str!("scripts/wanted.lua")),
    ("wide", include_str!("scripts/wide.lua")),
    ("wish", include_str!("scripts/wish.lua")),
];

/// Longer, in µs, than any request is of use, by the clock that its client has heard of, however
/// late that was.
const REQUESTS_VALID_US: u64 = 10_000_000;

/// What the scripts write as `$NAME`: numbers, the forms of docs/wire.md, and their sizes.
static NAMES: LazyLock<Vec<(&str, String)>> = LazyLock::new(|| {
    let number = |name, number: u64| (name, number.to_string());
    let form = |name, form: &str| (name, form.to_owned());
    let size = |name, form: &str| (name, form_size(form).to_string());
    let mut names = vec![
        number("$PLAIN_SIZE", form_size(PLAIN)),
        form("$PLAIN_STATE", PLAIN),
        form("$PLAIN_BODY", body(PLAIN)),
        ("$PLAIN_FORM", format!("<{}", body(PLAIN))),
        number("$PLAIN", Shape::Plain.byte()),
        size("$LINE_SIZE", LINE),
        form("$LINE_STATE", LINE),
        form("$LINE_BODY", body(LINE)),
        ("$LINE_FORM", format!("<{}", body(LINE))),
        number("$LINE", Shape::Line.byte()),
        size("$ALL_SIZE", ALL),
        form("$ALL_BODY", body(ALL)),
        ("$ALL_FORM", format!("<{}", body(ALL))),
        number("$ALL", Shape::All.byte()),
        number("$VERSION", VERSION),
        size("$WAITER_SIZE", WAITER),
        form("$WAITER", WAITER),
        size("$SHARER_SIZE", SHARER),
        form("$SHARER", SHARER),
        number("$WAITS", b'w'.into()),
        number("$SHARES", b's'.into()),
        form("$HEARD", HEARD),
        form("$PLACE", ">d"),
        form("$SLOT", "<c1I"),
        form("$GRANTED", "<c1c8IHdI"),
        form("$FIRST", "<c1c8d"),
        form("$CLIENT", "<Hddd"),
        form("$WHOSE", "<c16B"),
        form("$WANTED", "<dIIc1dIdB"),
        form("$IN_LINE", "<c8IdIddB"),
        form("$AFTER", "<Hd"),
        size("$END_SIZE", END),
        form("$END", END),
        size("$RENEWAL_SIZE", RENEWAL),
        form("$RENEWAL", RENEWAL),
        form("$LEAVING", "<c16B"),
        form("$CONVERSION", "<c16dHc1dII"),
        form("$MEANT", "<BHdI"),
        form("$LIMIT", "<I"),
        // Where in a state end how long the key lives and the token; and where begin what is behind
        // the end of the lease, and what is behind when it was given.
        number("$KEPT_END", 9),
        number("$TOKEN_END", 25),
        number("$ENDS_END", 34),
        number("$GIVEN_END", 42),
        form("$NO_END", &"\\0".repeat(8)),
        form("$NOBODY", &"\\0".repeat(16)),
        // How many holders, and how many places, one call looks at: about half a millisecond.
        number("$STEP", 256),
        // How much one call about several locks sees to: a lock that is just free or held is one,
        // at about 2 µs, and any other is four.
        number("$ROOM", 128),
        // Above all numbers of holders and permits, and below those of bonds.
        number("$BOND", Bond::LEAST),
        // Above all places of those who are preferred.
        number("$BEHIND", Place::BEHIND),
        // The moment from which fences count.
        number("$ORIGIN", Fence::ORIGIN_UNIX_US),
        // No request is good for so long, even where its client heard late of the clock.
        number("$VALID", REQUESTS_VALID_US),
        // Later than all moments, and exact as a number.
        number("$FAR", FAR),
        // How far from a range of places one still belongs to it, and how many ranges there are
        // beside those of places that are given.
        number("$SLACK", 1_024),
        number("$RANGES", 8),
        form("$RANGE", "<dd"),
        // How many places the search for the next waiter looks at.
        number("$FURTHER", 4_096),
        // How many releases of those who shared the lock are remembered.
        number("$REMEMBERED", LockEntry::ENDED_KEPT as u64),
    ];
    // One may begin with another.
    names.sort_by_key(|(name, _)| Reverse(name.len()));
    names
});

/// The fields behind a state's first byte.
fn body(form: &str) -> &str {
    form.get(2..).unwrap_or_default()
}

impl Scripts {
    /// Puts the scripts together, with their early exits or without, each source line changed as
    /// told.
    fn with(exits: bool, change: impl Fn(&str) -> String) -> Self {
        let script = |file: &str| {
            let mut source = String::new();
            paste(file, exits, &change, &mut Vec::new(), &mut source);
            Script::new(source)
        };
        Self {
            acquire: script(include_str!("scripts/acquire.lua")),
            acquire_all: script(include_str!("scripts/acquire_all.lua")),
            ask: script(include_str!("scripts/ask.lua")),
            convert: script(include_str!("scripts/convert.lua")),
            force_release: script(include_str!("scripts/force_release.lua")),
            inspect: script(include_str!("scripts/inspect.lua")),
            leave: script(include_str!("scripts/leave.lua")),
            publish: script(include_str!("scripts/publish.lua")),
            release: script(include_str!("scripts/release.lua")),
            renew: script(include_str!("scripts/renew.lua")),
            set_limit: script(include_str!("scripts/set_limit.lua")),
        }
    }
}

/// Appends a file without its comments, and with the fragments that it is the first to name.
///
/// What stands between a line that begins with `-- exit` and the next `-- end` is an early exit: a
/// usual case that is done without looking any further. Nothing depends on whether it was taken, so
/// a script without it does the same at a higher price.
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

/// A line with what it names. Few lines name anything, and every start of a program reads all of
/// them.
fn named(line: &str) -> Cow<'_, str> {
    if !line.contains('$') {
        return Cow::Borrowed(line);
    }
    let named = |line: String, (name, text): &(&str, String)| line.replace(name, text);
    Cow::Owned(NAMES.iter().fold(line.to_owned(), named))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The one line that reads the server's clock.
    pub(crate) const CLOCK: &str = "local time = redis.call('TIME')";

    /// How the one line begins in which a request is found to be late, by the real clock.
    const LATE: &str = "if not_after > 0 ";

    fn at_time_in(clock_key: &str, line: &str) -> String {
        match line {
            _ if line.starts_with(LATE) => "not_after = 0".to_owned(),
            CLOCK => format!("local time = redis.call('MGET', '{clock_key}:s', '{clock_key}:us')"),
            _ => line.to_owned(),
        }
    }

    impl Scripts {
        /// The same scripts, but for the time, which they read from a key.
        pub(crate) fn at_time_in(clock_key: &str) -> Self {
            Self::with(true, |line| at_time_in(clock_key, line))
        }

        /// Those without early exits, likewise.
        pub(crate) fn without_exits(clock_key: &str) -> Self {
            Self::with(false, |line| at_time_in(clock_key, line))
        }

        /// The same scripts, but for the command with which they send messages, and the time.
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
            // So that those which can't publish differ from the real ones there alone.
            let sent = real.source.matches("'PUBLISH'").count();
            assert_eq!(real.source.matches("PUBLISH").count(), sent);
        }
    }

    #[test]
    fn every_fragment_that_is_named_exists() {
        let files = SCRIPTS.all().map(|script| &script.source);
        assert!(files.iter().all(|source| !source.contains("include:") && !source.contains('$')));
        let named = [
            include_str!("scripts/acquire.lua"),
            include_str!("scripts/acquire_all.lua"),
            include_str!("scripts/ask.lua"),
            include_str!("scripts/convert.lua"),
            include_str!("scripts/force_release.lua"),
            include_str!("scripts/inspect.lua"),
            include_str!("scripts/leave.lua"),
            include_str!("scripts/publish.lua"),
            include_str!("scripts/release.lua"),
            include_str!("scripts/renew.lua"),
            include_str!("scripts/set_limit.lua"),
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
