//! What every database must do, written once; each server's file says how to talk to it.

use std::sync::Barrier;
use std::thread;

use leasehold::Fence;

use super::fence;

/// Why a statement failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A deadlock, a serialization failure or a lock that took too long: no refusal.
    Again,
    Other(String),
}

/// Which lease the fence came with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lease {
    Exclusive,
    Shared,
}

/// One connection. The work is a table `work` with rows of `name` and `value`, and a table `log`
/// of fences in the order in which they were written.
pub(crate) trait Session: Send {
    fn begin(&mut self, level: &str) -> Result<(), Fault>;
    fn execute(&mut self, sql: &str) -> Result<(), Fault>;
    fn touch(&mut self, name: &str, fence: Fence, lease: Lease) -> Result<bool, Fault>;
    fn number(&mut self, sql: &str) -> Result<i64, Fault>;

    fn read(&mut self, name: &str) -> Result<i64, Fault> {
        self.number(&format!("SELECT value FROM work WHERE name = '{name}'"))
    }

    fn write(&mut self, name: &str, value: i64) -> Result<(), Fault> {
        self.execute(&format!("UPDATE work SET value = {value} WHERE name = '{name}'"))
    }

    /// Ends what is left of a transaction.
    fn give_up(&mut self) {
        self.execute("ROLLBACK").unwrap();
    }
}

pub(crate) trait Database: Sync {
    fn session(&self) -> Box<dyn Session>;
    /// Whether some transaction waits for a lock of another one.
    fn somebody_is_blocked(&self) -> bool;
}

fn resource(db: &dyn Database, name: &str) {
    let insert = format!("INSERT INTO work (name, value) VALUES ('{name}', 0)");
    db.session().execute(&insert).unwrap();
}

const LATE: i64 = 100;
const LATER: i64 = 200;

/// A fenced transaction as the documentation has it: again from its beginning after a fault.
/// Returns what it read, or `None` when the fence was refused. `step` is called before each
/// statement.
fn transaction(
    session: &mut dyn Session,
    (level, name): (&str, &str),
    (fence, value): (Fence, i64),
    step: &mut dyn FnMut(),
) -> Option<i64> {
    for _ in 0..100 {
        let mut attempt = || -> Result<Option<i64>, Fault> {
            step();
            session.begin(level)?;
            step();
            if !session.touch(name, fence, Lease::Exclusive)? {
                return Ok(None);
            }
            step();
            let read = session.read(name)?;
            step();
            session.write(name, value)?;
            step();
            session.execute("COMMIT")?;
            Ok(Some(read))
        };
        match attempt() {
            Ok(Some(read)) => return Some(read),
            Ok(None) => {
                session.give_up();
                return None;
            }
            Err(Fault::Again) => session.give_up(),
            Err(Fault::Other(error)) => panic!("fence {fence}: {error}"),
        }
    }
    panic!("fence {fence}: a hundred tries ended in deadlocks");
}

/// The statements before which the stale holder is paused: begin, touch, read, write, commit.
const PAUSES: usize = 5;

/// Pauses the stale holder before each of its statements, lets its successor do all its work (or as
/// much as it can before it waits for the stale one), and then lets the stale one go on.
pub(crate) fn a_stale_holder_paused_anywhere_is_before_its_successor_or_refused(
    db: &dyn Database,
    levels: &[&str],
) {
    for level in levels {
        for pause in 0..PAUSES {
            let name = format!("{level} {pause}").to_lowercase();
            resource(db, &name);
            let (mut late, mut later) = (db.session(), db.session());
            let (at, read_later) = (Barrier::new(2), &mut None);
            let read_late = thread::scope(|scope| {
                let (name, at) = (name.as_str(), &at);
                let successor = scope.spawn(move || {
                    at.wait();
                    transaction(&mut *later, (level, name), (fence(2), LATER), &mut || {})
                });
                let mut statement = 0;
                let mut step = || {
                    if statement == pause {
                        at.wait();
                        while !successor.is_finished() && !db.somebody_is_blocked() {
                            thread::yield_now();
                        }
                    }
                    statement += 1;
                };
                let read_late = transaction(&mut *late, (level, name), (fence(1), LATE), &mut step);
                *read_later = Some(successor.join().unwrap());
                read_late
            });
            let context = format!("{level}, paused before statement {pause}");
            let read_later = read_later.unwrap().expect("the successor's fence is the highest");
            let expected = if read_late.is_some() { LATE } else { 0 };
            assert_eq!(read_later, expected, "{context}: the late write came after the read");
            assert_eq!(db.session().read(&name).unwrap(), LATER, "{context}: a lost update");
        }
    }
}

/// The first touches of a new name, at the same instant.
pub(crate) fn first_touches_that_race_leave_the_fences_in_order(db: &dyn Database, level: &str) {
    const HOLDERS: u64 = 6;
    const ROUNDS: u64 = 5;
    for round in 0..ROUNDS {
        let name = format!("race {round}");
        let (name, start) = (name.as_str(), Barrier::new(usize::try_from(HOLDERS).unwrap()));
        thread::scope(|scope| {
            for holder in 1..=HOLDERS {
                let start = &start;
                scope.spawn(move || {
                    let mut session = db.session();
                    start.wait();
                    let number = round * HOLDERS + holder;
                    for _ in 0..100 {
                        let mut attempt = || -> Result<(), Fault> {
                            session.begin(level)?;
                            if !session.touch(name, fence(number), Lease::Exclusive)? {
                                return session.execute("ROLLBACK");
                            }
                            let insert = format!("INSERT INTO log (fence) VALUES ({number})");
                            session.execute(&insert)?;
                            session.execute("COMMIT")
                        };
                        match attempt() {
                            Ok(()) => return,
                            Err(Fault::Again) => session.give_up(),
                            Err(Fault::Other(error)) => panic!("{error}"),
                        }
                    }
                    panic!("a hundred tries ended in deadlocks");
                });
            }
        });
    }
    let falls = "SELECT COUNT(*) FROM log a JOIN log b ON a.id < b.id AND a.fence > b.fence";
    let mut session = db.session();
    assert_eq!(session.number(falls).unwrap(), 0, "a lower fence was let in after a higher one");
    assert!(session.number("SELECT COUNT(*) FROM log").unwrap() >= i64::try_from(ROUNDS).unwrap());
}

/// Why reads commit, and what protects those that don't.
pub(crate) fn a_read_that_rolls_back_shuts_out_only_after_a_touch_that_committed(
    db: &dyn Database,
    level: &str,
) {
    for opened in [false, true] {
        let name = format!("read {opened}");
        resource(db, &name);
        let (mut late, mut later) = (db.session(), db.session());
        if opened {
            assert!(later.touch(&name, fence(2), Lease::Exclusive).unwrap());
        }
        later.begin(level).unwrap();
        assert!(later.touch(&name, fence(2), Lease::Exclusive).unwrap());
        assert_eq!(later.read(&name).unwrap(), 0);
        later.execute("ROLLBACK").unwrap();
        let read = transaction(&mut *late, (level, &name), (fence(1), LATE), &mut || {});
        assert_eq!(read.is_none(), opened, "the lease began with a touch that committed: {opened}");
    }
}

/// A savepoint older than the touch takes the touch back with it.
pub(crate) fn a_savepoint_older_than_the_touch_takes_it_back(db: &dyn Database, level: &str) {
    let name = "savepoint";
    resource(db, name);
    let (mut late, mut later) = (db.session(), db.session());
    later.begin(level).unwrap();
    later.execute("SAVEPOINT before_touch").unwrap();
    assert!(later.touch(name, fence(2), Lease::Exclusive).unwrap());
    later.execute("ROLLBACK TO SAVEPOINT before_touch").unwrap();
    later.execute("COMMIT").unwrap();
    late.begin(level).unwrap();
    assert!(late.touch(name, fence(1), Lease::Exclusive).unwrap());
    late.execute("COMMIT").unwrap();
}

/// Every order in which a writer and two readers may come.
pub(crate) fn shared_leases_refuse_only_what_a_writer_has_outlived(db: &dyn Database, level: &str) {
    use Lease::{Exclusive, Shared};
    let touched = |name: &str, number: u64, lease: Lease| {
        let mut session = db.session();
        session.begin(level).unwrap();
        let passes = session.touch(name, fence(number), lease).unwrap();
        session.execute(if passes { "COMMIT" } else { "ROLLBACK" }).unwrap();
        passes
    };
    for (name, touches) in [
        ("readers", &[(2, Shared, true), (1, Shared, true), (2, Shared, true)][..]),
        ("late writer", &[(1, Exclusive, true), (2, Shared, true), (1, Exclusive, false)][..]),
        ("late reader", &[(1, Shared, true), (3, Exclusive, true), (2, Shared, false)][..]),
        ("its own", &[(1, Exclusive, true), (1, Shared, true), (1, Exclusive, true)][..]),
    ] {
        for (number, lease, passes) in touches {
            let said = touched(&format!("shared {name}"), *number, *lease);
            assert_eq!(said, *passes, "{name}: {lease:?} with fence {number}");
        }
    }
}
