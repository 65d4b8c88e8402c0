//! Compares the scripts with and without their early exits: answers, notifications, stored bytes.
//!
//! So a script has the same effects whether or not an exit is taken. Only speed decides about an
//! exit.

use super::*;

struct Two {
    with: World,
    without: World,
}

impl Bench for Two {
    fn world(&self) -> &World {
        &self.with
    }
}

fn check(home: Home) {
    let worlds = async {
        let with = World::with(Scripts::at_time_in(CLOCK)).await;
        Two { with, without: World::with(Scripts::without_exits(CLOCK)).await }
    };
    try_sequences(cases(), sequence(home), worlds, async |two, steps| {
        let with = agree(&mut two.with, &steps).await;
        // After a failed sequence, the other world has to reach the same number.
        let without = agree(&mut two.without, &steps).await;
        for (with, without) in with?.iter().zip(&without?) {
            prop_assert_eq!(with.bytes(), without.bytes(), "what is stored differs");
        }
        Ok(())
    });
}

#[test]
fn exits_change_nothing_of_exclusive_locks() {
    check(Home::Exclusive);
}

#[test]
fn exits_change_nothing_of_names_that_are_used_as_anything() {
    check(Home::Any);
}
