//! The queue of waiters: who comes next, and the position of each waiter.

use super::entry::{LockEntry, Waiter};
use super::{Now, StoreTime};
use crate::store::{AcquireRequest, Place, QueueRequest, Waiting};

impl LockEntry {
    /// Whether a newcomer, or a forgotten waiter that brings its old position, comes before all in
    /// the queue.
    pub(super) fn is_next(&self, request: &AcquireRequest, at: StoreTime) -> bool {
        #[cfg(leasehold_planted)]
        if crate::planted::is(crate::planted::Fault::NewcomerPassesLine) {
            return true;
        }
        let place = request.in_line().and_then(|queue| queue.place);
        let place = place.filter(|place| self.may_have_given(*place, at));
        self.waiters.front().is_none_or(|head| match place {
            Some(place) => place < head.place,
            None => request.preferred && !head.place.is_preferred(),
        })
    }

    /// Adds a new waiter to the queue, or a forgotten one that brings its old position.
    pub(super) fn join_line(
        &mut self,
        request: &AcquireRequest,
        queue: &QueueRequest,
        at: StoreTime,
    ) -> Place {
        if self.waiters.is_empty() {
            self.next_places = [None; 2];
        }
        let known = queue.place.filter(|place| self.may_have_given(*place, at));
        let preferred = known.map_or(request.preferred, Place::is_preferred);
        let next = self.next_place(preferred, at);
        let place = known.unwrap_or(next);
        self.next_places[usize::from(!preferred)] = Some(next.max(place.following()));
        self.time.give(at);
        let before = self.waiters.partition_point(|waiter| waiter.place < place);
        self.waiters.insert(
            before,
            Waiter {
                token: request.token,
                mode: request.mode,
                place,
                client: queue.client,
                ticket: queue.ticket,
                heartbeat: queue.heartbeat,
                window: queue.window,
                behind: queue.behind,
                fence_block: request.fence_block,
                arrived_at: at,
                seen_at: at,
                owner: request.owner.clone(),
                metadata: request.metadata.clone(),
            },
        );
        place
    }

    /// The next position to give.
    fn next_place(&self, preferred: bool, at: StoreTime) -> Place {
        self.next_places[usize::from(!preferred)]
            .unwrap_or_else(|| Place::on_arrival(at.as_micros(), preferred))
    }

    /// Whether a position that a waiter brings can have been given, and belongs to no other waiter.
    fn may_have_given(&self, place: Place, at: StoreTime) -> bool {
        let preferred = place.is_preferred();
        let present = Place::on_arrival(at.as_micros(), preferred);
        (place <= present || place < self.next_place(preferred, at))
            && self.waiters.iter().all(|waiter| waiter.place != place)
    }

    pub(super) fn waiting(&self, place: Place, now: Now) -> Waiting {
        let position = self.waiters.partition_point(|waiter| waiter.place < place);
        let position = u32::try_from(position).unwrap_or(u32::MAX);
        Waiting::new(position, place, self.next_free_in(now), self.holder_info(now.at))
    }
}
