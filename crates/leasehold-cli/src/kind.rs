//! Decides which kind of lock the options mean, and which options go together.

use std::time::Duration;

use crate::arguments;
use crate::cli::Kinds;
use crate::failure::{Failure, Outcome};

/// The kind and amount to take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// One lock or several, alone.
    Exclusive,
    /// One lock, together with others.
    Shared,
    /// A number of permits of a semaphore.
    Permits {
        count: u32,
        limit: u32,
        /// Whether the limit that it is in use with goes before this one.
        stored_limit: bool,
    },
    /// A period, by starting in it.
    OncePer(Duration),
}

impl Kind {
    /// Judges the options for this number of names.
    pub(crate) fn of(typed: &Kinds, names: usize) -> Outcome<Self> {
        let Kinds { shared, exclusive, limit, stored_limit, permits, once_per } = typed;
        let refuse = |why: &str| Err(Failure::usage(why));
        let kinds = [
            (*shared, "--shared"),
            (*exclusive, "--exclusive"),
            (limit.is_some(), "--limit"),
            (once_per.is_some(), "--once-per"),
        ];
        let mut given = kinds.iter().filter(|(given, _)| *given).map(|(_, name)| *name);
        let (first, second) = (given.next(), given.next());
        if let (Some(one), Some(other)) = (first, second) {
            return refuse(&format!("{one} and {other} are different kinds of locks; give one"));
        }
        if let Some(kind) = first.filter(|kind| names > 1 && *kind != "--exclusive") {
            return refuse(&format!("{kind} takes one lock; leave it out, or give one name"));
        }
        if *stored_limit && limit.is_none() {
            return refuse("--stored-limit needs --limit N; give both");
        }
        match (limit, permits) {
            (None, Some(_)) => refuse("--permits needs --limit N; give both"),
            (Some(0), _) => arguments::limit(0).map(|_| Self::Exclusive),
            (Some(_), Some(0)) => refuse("--permits 0 takes nothing; give at least 1"),
            (Some(limit), Some(count)) if count > limit => {
                refuse(&format!("{count} permits are more than the limit of {limit}; give fewer"))
            }
            (Some(limit), count) => Ok(Self::Permits {
                count: count.unwrap_or(1),
                limit: *limit,
                stored_limit: *stored_limit,
            }),
            (None, None) => Ok(match once_per {
                Some(period) => Self::OncePer(*period),
                None if *shared => Self::Shared,
                None => Self::Exclusive,
            }),
        }
    }

    /// Refuses the options of waiting and closing that this kind has no use for.
    pub(crate) fn judge(self, wait: Option<Duration>, cooldown: bool) -> Outcome<()> {
        let refuse = |why| Err(Failure::usage(why));
        match self {
            Self::OncePer(_) if wait.is_some() => {
                refuse("--once-per never waits for the next period; leave --wait out")
            }
            Self::OncePer(_) if cooldown => {
                refuse("--once-per has a cooldown of its own; leave --cooldown out")
            }
            Self::Shared | Self::Permits { .. } if cooldown => {
                refuse("a cooldown would also stop those who share the lock; leave --cooldown out")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(names: usize, set: impl FnOnce(&mut Kinds)) -> Outcome<Kind> {
        let mut typed = Kinds::default();
        set(&mut typed);
        Kind::of(&typed, names)
    }

    #[test]
    fn one_kind_at_a_time_and_several_names_only_alone() {
        assert_eq!(kind(1, |_| {}).unwrap(), Kind::Exclusive);
        assert_eq!(kind(2, |typed| typed.exclusive = true).unwrap(), Kind::Exclusive);
        assert_eq!(kind(1, |typed| typed.shared = true).unwrap(), Kind::Shared);
        let semaphore = kind(1, |typed| typed.limit = Some(3)).unwrap();
        assert_eq!(semaphore, Kind::Permits { count: 1, limit: 3, stored_limit: false });
        let refused = [
            kind(2, |typed| typed.shared = true),
            kind(2, |typed| typed.limit = Some(3)),
            kind(2, |typed| typed.once_per = Some(Duration::from_secs(1))),
            kind(1, |typed| typed.permits = Some(3)),
            kind(1, |typed| typed.stored_limit = true),
            kind(1, |typed| (typed.limit, typed.permits) = (Some(2), Some(3))),
            kind(1, |typed| (typed.shared, typed.exclusive) = (true, true)),
            kind(1, |typed| (typed.shared, typed.limit) = (true, Some(3))),
        ];
        for refusal in refused {
            let message = refusal.unwrap_err().message;
            assert!(message.contains("; "), "says what to do: {message}");
        }
    }
}
