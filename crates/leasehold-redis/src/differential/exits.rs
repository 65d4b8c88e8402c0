//! Compares the scripts with their early exits and without: answers, messages, stored bytes.
//!
//! So nothing that a script does depends on whether an exit was taken, and an exit can be taken out or put in for its
//! price alone.

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
        // Of a sequence that failed there, the other has to come to the same number.
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
