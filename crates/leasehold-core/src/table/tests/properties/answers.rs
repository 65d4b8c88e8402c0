//! What an answer changes in the second bookkeeping, and which answers are wrong.

use super::*;

impl World {
    /// Enters an answer.
    pub(super) fn enter_answer(&mut self, call: &Call<'_>, answer: &Answer, closed: bool) {
        let at_us = self.lock.at_us;
        let queue = call.acquire.as_ref().and_then(|asked| asked.queue.as_ref());
        let in_line: Vec<Token> = self.lock.entry.tokens().copied().collect();
        let books = &mut self.books;
        match (call.op, answer) {
            (&Op::Acquire { who, ttl_ms, holds, block, how, .. }, &Answer::Granted(fences)) => {
                assert!(!closed, "granted during a cooldown");
                let place = queue.and_then(|queue| queue.place);
                let preferred = matches!(how, How::Preferred);
                let kept = place.filter(|place| books.may_have_given(*place, &in_line, at_us));
                let mut before = books.line.values().filter(|other| {
                    let behind = match kept {
                        Some(place) => other.place > place,
                        None => preferred && !other.place.is_preferred(),
                    };
                    !behind && other.servable(at_us)
                });
                assert!(before.next().is_none(), "granted past the line");
                assert_eq!(fences.count(), block);
                books.line.remove(&who);
                if let How::Cooldown { ms } = how {
                    books.closed_until_us = books.closed_until_us.max(at_us + ms * 1_000);
                }
                let mode = books.modes[usize::from(who)];
                let expires_us = at_us + ttl_ms * 1_000;
                books.grant(who, Held { fences, mode, asked: false, holds, expires_us });
            }
            (&Op::Acquire { who, ttl_ms, holds, .. }, &Answer::Already(already)) => {
                let held = books.held.get_mut(&who).expect("it holds already");
                held.expires_us = held.expires_us.max(at_us + ttl_ms * 1_000);
                held.holds = holds;
                assert_eq!(already, Already::new(held.fences, holds));
            }
            (&Op::Acquire { who, .. }, Answer::Waiting(waiting)) => {
                assert!(!books.held.contains_key(&who), "a holder is not queued");
                let known = books.line.get(&who).cloned();
                if let (None, Some(asked)) = (&known, &call.acquire) {
                    books.give(waiting.place, asked, &in_line, at_us);
                }
                let waits = match (queue, known) {
                    (Some(queue), known) => Waits {
                        place: waiting.place,
                        mode: known
                            .map_or_else(|| books.modes[usize::from(who)], |waits| waits.mode),
                        heartbeat: queue.heartbeat,
                        seen_us: at_us,
                        window_us: u64::from(queue.window.as_millis()) * 1_000,
                    },
                    (None, known) => known.expect("only a request to wait is queued"),
                };
                assert_eq!(waits.place, waiting.place);
                books.places.insert(who, waiting.place);
                books.line.insert(who, waits);
            }
            (&Op::Acquire { who, .. }, Answer::Busy(busy)) => {
                assert!(!books.held.contains_key(&who), "a holder is not refused its own lock");
                assert!(!busy.retry_after.is_zero(), "busy, and free at once");
            }
            (
                &Op::Renew { who, ttl_ms, shorten, .. },
                Answer::Renew(answer @ (Renew::Renewed | Renew::Asked)),
            ) => {
                let expires_us = at_us + ttl_ms * 1_000;
                let held = books.held.get_mut(&who).expect("only a holder renews");
                assert_eq!(held.asked, *answer == Renew::Asked);
                held.expires_us =
                    if shorten { expires_us } else { held.expires_us.max(expires_us) };
            }
            (&Op::Renew { who, .. }, Answer::Renew(answer)) => {
                assert!(!books.held.contains_key(&who), "a holder was refused its renewal");
                let late = books.latest == Some(who) && books.held.is_empty();
                assert_eq!(*answer, if late { Renew::Late } else { Renew::NotHeld });
            }
            (&Op::Convert { who, mode }, Answer::Convert(answer)) => match *answer {
                Convert::Converted(converted) => {
                    let alone = books.held.len() == 1;
                    let others = books.permits() - books.permits_of(who);
                    let held = books.held.get_mut(&who).expect("only a holder converts");
                    let upgraded = (held.mode, mode) == (Mode::Shared, Mode::Exclusive);
                    if let Mode::Permits { count, limit } = mode {
                        let fewer = permits_in(mode) <= permits_in(held.mode);
                        assert!(fewer || others + count.get() <= limit.get(), "beyond the limit");
                    }
                    held.mode = mode;
                    if upgraded {
                        assert!(alone, "an upgrade beside others");
                        assert!(converted.fences.first() > books.top_fence);
                        held.fences = converted.fences;
                        books.top_fence = converted.fences.last();
                        books.fences.insert(who, converted.fences);
                        books.latest = Some(who);
                    } else {
                        assert_eq!(converted.fences, held.fences);
                    }
                }
                Convert::Busy { others } => {
                    let held = &books.held[&who];
                    match held.mode {
                        Mode::Shared => assert_eq!(others as usize, books.held.len() - 1),
                        _ => assert_eq!(others, books.permits() - books.permits_of(who)),
                    }
                }
                Convert::Refused(_) => assert!(books.held.contains_key(&who)),
                Convert::Late => assert_eq!(books.latest, Some(who)),
                Convert::NotHeld => {
                    // A downgrade that does not name the lease's fences is an old one that was
                    // delayed.
                    let knows = books
                        .held
                        .get(&who)
                        .is_none_or(|held| held.fences.last() == call.fences.last());
                    assert!(!knows || !books.held.contains_key(&who), "a holder was refused");
                    assert!(!knows || books.latest != Some(who) || !books.held.is_empty());
                }
            },
            (&Op::SetLimit { limit }, Answer::SetLimit(SetLimit::Set { .. })) => {
                books.line.retain(|_, waits| permits_in(waits.mode) <= limit);
                let line = books.line.values_mut().map(|waits| &mut waits.mode);
                for mode in books.held.values_mut().map(|held| &mut held.mode).chain(line) {
                    *mode = permits(permits_in(*mode), limit);
                }
            }
            (&Op::Ask { who }, Answer::Ask(answer)) => {
                let mut asked = 0;
                for held in books.held.values_mut() {
                    if who.is_none() || held.fences.contains(call.fences.first()) {
                        held.asked = true;
                        asked += 1;
                    }
                }
                let expected =
                    if asked == 0 { Ask::NotHeld } else { Ask::Asked { holders: asked } };
                assert_eq!(*answer, expected);
            }
            (&Op::Release { who, cooldown, reopen, .. }, Answer::Release(answer)) => {
                match *answer {
                    Release::StillHeld { holds } => {
                        books.held.get_mut(&who).expect("only a holder releases").holds = holds;
                    }
                    Release::Released => {
                        if books.held.remove(&who).is_some() {
                            books.latest = books.latest.filter(|latest| *latest != who);
                            books.reopen(reopen);
                            let until = at_us + cooldown.unwrap_or(0) * 1_000;
                            books.closed_until_us = books.closed_until_us.max(until);
                        }
                    }
                    Release::Late => {
                        assert!(!books.held.contains_key(&who));
                        // A lock that is reopened may be granted to a waiter in the same step.
                        assert!(
                            reopen || books.latest == Some(who),
                            "late, but another holder came"
                        );
                        books.reopen(reopen);
                        let until = at_us + cooldown.unwrap_or(0) * 1_000;
                        books.closed_until_us = books.closed_until_us.max(until);
                    }
                    Release::NotHeld => {
                        assert!(!books.held.contains_key(&who), "a holder's release was refused");
                        let late = books.latest == Some(who) && books.held.is_empty();
                        assert!(!late, "nobody came, so it is only late");
                    }
                }
            }
            (&Op::Leave { who }, Answer::Leave(answer)) => {
                let had = books.held.remove(&who).is_some();
                assert_eq!(had, *answer == Leave::Released);
                books.latest = books.latest.filter(|latest| !had || *latest != who);
                let waited = books.line.remove(&who);
                let alive = waited.is_some_and(|waits| waits.servable(at_us));
                assert!(!alive || *answer == Leave::Left);
            }
            (&Op::ForceRelease { who }, Answer::ForceRelease(answer)) => {
                let seen = books.held.get(&who).is_some_and(|held| held.fences == call.fences);
                assert_eq!(seen, *answer == ForceRelease::Released);
                if seen {
                    books.held.remove(&who);
                    // The fence was raised, unless another waiter has been served after that.
                    if self.lock.entry.last_fence() != Some(books.top_fence) {
                        assert!(self.lock.entry.last_fence() > Some(books.top_fence));
                        books.latest = None;
                    }
                }
            }
            (&Op::Bury { who }, _) => {
                books.held.remove(&who);
                books.line.remove(&who);
            }
            _ => {}
        }
    }
}
