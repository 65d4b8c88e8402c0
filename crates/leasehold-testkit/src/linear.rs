//! Checks whether concurrent calls could have happened one after the other.
//!
//! The search of Wing and Gong ("Testing and verifying concurrent objects", 1993). Some order of
//! the calls must explain every answer, and it must keep each call after those that had returned
//! when it was made. A state reached again with the same calls done is skipped (Lowe, "Testing for
//! linearizability", 2017). The search is exponential at worst, so the sets of calls are kept
//! small.

/// A call, its answer, and when both were: numbers that grow in real time.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "tests make it")]
pub struct Call<O, A> {
    /// The request.
    pub asked: O,
    /// The answer.
    pub answer: A,
    /// When the request was made.
    pub invoked: u64,
    /// When the answer arrived.
    pub returned: u64,
}

/// How many calls an order may have.
pub const CALLS_MAX: usize = 64;

/// An order in which the calls can have been carried out, as indices; `None` if there is none.
/// `step` carries one call out on a state and returns its answer.
///
/// # Panics
///
/// When there are more than [`CALLS_MAX`] calls.
pub fn order<S: Clone + PartialEq, O, A: PartialEq>(
    calls: &[Call<O, A>],
    start: &S,
    step: impl Fn(&mut S, &O) -> A,
) -> Option<Vec<usize>> {
    assert!(calls.len() <= CALLS_MAX, "{} calls are too many for one window", calls.len());
    let mut search = Search { calls, step, tried: Vec::new(), order: Vec::new() };
    search.go_on(0, start).then_some(search.order)
}

struct Search<'a, S, O, A, F> {
    calls: &'a [Call<O, A>],
    step: F,
    /// Which calls were done, as bits, in states from which the search failed.
    tried: Vec<(u64, S)>,
    order: Vec<usize>,
}

impl<S: Clone + PartialEq, O, A: PartialEq, F: Fn(&mut S, &O) -> A> Search<'_, S, O, A, F> {
    fn go_on(&mut self, done: u64, state: &S) -> bool {
        let open = |at: &usize| done & (1 << at) == 0;
        let first_return =
            (0..self.calls.len()).filter(open).map(|at| self.calls[at].returned).min();
        let Some(first_return) = first_return else { return true };
        for at in (0..self.calls.len()).filter(open) {
            let call = &self.calls[at];
            if call.invoked > first_return {
                continue;
            }
            let mut next = state.clone();
            if (self.step)(&mut next, &call.asked) != call.answer {
                continue;
            }
            let done = done | 1 << at;
            if self.tried.iter().any(|(mask, seen)| *mask == done && *seen == next) {
                continue;
            }
            self.order.push(at);
            if self.go_on(done, &next) {
                return true;
            }
            self.order.pop();
            self.tried.push((done, next));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug)]
    enum Ask {
        Read,
        Write(u8),
    }

    fn register(state: &mut u8, asked: &Ask) -> u8 {
        match asked {
            Ask::Read => *state,
            Ask::Write(value) => std::mem::replace(state, *value),
        }
    }

    fn call(asked: Ask, answer: u8, invoked: u64, returned: u64) -> Call<Ask, u8> {
        Call { asked, answer, invoked, returned }
    }

    #[test]
    fn calls_at_the_same_time_may_come_in_any_order() {
        let calls = [call(Ask::Write(1), 0, 0, 9), call(Ask::Read, 0, 1, 8)];
        assert_eq!(order(&calls, &0, register), Some(vec![1, 0]));
        let calls = [call(Ask::Write(1), 0, 0, 9), call(Ask::Read, 1, 1, 8)];
        assert_eq!(order(&calls, &0, register), Some(vec![0, 1]));
    }

    #[test]
    fn a_call_after_an_answer_sees_it() {
        let calls = [call(Ask::Write(1), 0, 0, 1), call(Ask::Read, 0, 2, 3)];
        assert_eq!(order(&calls, &0, register), None);
    }

    #[test]
    fn two_readers_do_not_see_a_write_come_and_go() {
        let calls =
            [call(Ask::Write(1), 0, 0, 9), call(Ask::Read, 1, 1, 2), call(Ask::Read, 0, 3, 4)];
        assert_eq!(order(&calls, &0, register), None);
    }
}
