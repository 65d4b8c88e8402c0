//! The scripts, put together from their files.
//!
//! Each operation is one file in `scripts/`, with a header that is its contract. What operations
//! share stands in fragments, which are pasted in where a line says `-- include: name`, behind the
//! short ways that need none of it: a Lua function is created anew by every call that gets to it.

use std::borrow::Cow;
use std::sync::LazyLock;

use leasehold_core::table::LockEntry;
use leasehold_core::{Bond, Fence, Place};

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

pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts::with(str::to_owned));

const FRAGMENTS: [(&str, &str); 12] = [
    ("asked", include_str!("scripts/asked.lua")),
    ("crowd", include_str!("scripts/crowd.lua")),
    ("each", include_str!("scripts/each.lua")),
    ("line", include_str!("scripts/line.lua")),
    ("lock", include_str!("scripts/lock.lua")),
    ("now", include_str!("scripts/now.lua")),
    ("refusal", include_str!("scripts/refusal.lua")),
    ("send", include_str!("scripts/send.lua")),
    ("settle", include_str!("scripts/settle.lua")),
    ("settled", include_str!("scripts/settled.lua")),
    ("expire_and_grant", include_str!("scripts/expire_and_grant.lua")),
    ("take", include_str!("scripts/take.lua")),
];

/// What the scripts write as `$NAME`.
const NUMBERS: [(&str, u64); 12] = [
    // How many holders, and how many places, one call looks at: about a third of a millisecond.
    ("$STEP", 256),
    // How many hand-overs and places one call about several locks sees to, at 5 to 11 µs each. What
    // is more than that counts threefold, at 11 to 32 µs: together at most 0.3 ms.
    ("$ROOM", 24),
    // How many free locks one call takes, at about 2 µs each. One that was never used counts twice, at 3 to
    // 4 µs.
    ("$FREE", 128),
    // Above all numbers of holders and permits, and below those of bonds.
    ("$BOND", Bond::LEAST),
    // Above all places of those who are preferred.
    ("$BEHIND", Place::BEHIND),
    // The moment from which fences count.
    ("$ORIGIN", Fence::ORIGIN_UNIX_US),
    // Later than all moments: sixteen digits, and exact as a number.
    ("$FAR", (1 << 53) - 1),
    // How far from a range of places one still belongs to it, and how many ranges there are beside
    // those of places that are given.
    ("$SLACK", 1_024),
    ("$RANGES", 8),
    // How many places the search for the next waiter looks at one by one, and how many times it then
    // looks at a step of them.
    ("$NEAR", 8),
    ("$FURTHER", 16),
    // How many releases of those who shared the lock are remembered.
    ("$REMEMBERED", LockEntry::ENDED_KEPT as u64),
];

/// In the place of a token that there is not.
const NOBODY: (&str, &str) = ("$NOBODY", "--------------------------------");

impl Scripts {
    /// Puts the scripts together, each source line changed as told.
    fn with(change: impl Fn(&str) -> String) -> Self {
        let script = |file: &str| {
            let mut source = String::new();
            paste(file, &change, &mut Vec::new(), &mut source);
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
fn paste<'a>(
    file: &'a str,
    change: &impl Fn(&str) -> String,
    pasted: &mut Vec<&'a str>,
    source: &mut String,
) {
    for line in file.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("-- include: ") {
            let fragment = FRAGMENTS.iter().find(|(known, _)| *known == name);
            if let Some((_, fragment)) = fragment.filter(|_| !pasted.contains(&name)) {
                pasted.push(name);
                paste(fragment, change, pasted, source);
            }
        } else if !line.is_empty() && !line.starts_with("--") {
            source.push_str(&change(&named(line)));
            source.push('\n');
        }
    }
}

/// A line with the numbers that it names. Few lines name one, and every start of a program reads all of them.
fn named(line: &str) -> Cow<'_, str> {
    if !line.contains('$') {
        return Cow::Borrowed(line);
    }
    let line = line.replace(NOBODY.0, NOBODY.1);
    let named =
        |line: String, (name, number): &(&str, u64)| line.replace(name, &number.to_string());
    Cow::Owned(NUMBERS.iter().fold(line, named))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The one line that reads the server's clock.
    pub(crate) const CLOCK: &str = "local time = redis.call('TIME')";

    fn at_time_in(clock_key: &str, line: &str) -> String {
        match line {
            CLOCK => format!("local time = redis.call('MGET', '{clock_key}:s', '{clock_key}:us')"),
            _ => line.to_owned(),
        }
    }

    impl Scripts {
        /// The same scripts, but for the time, which they read from a key.
        pub(crate) fn at_time_in(clock_key: &str) -> Self {
            Self::with(|line| at_time_in(clock_key, line))
        }

        /// The same scripts, but for the command with which they send messages, and the time.
        pub(crate) fn publishing_by(command: &str, clock_key: Option<&str>) -> Self {
            let publish = format!("'{command}'");
            Self::with(|line| {
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
                .filter(|(real, tested)| real != tested)
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
        assert!(files.iter().all(|source| !source.contains("include:") && !source.contains("'$")));
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
