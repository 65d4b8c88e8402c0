//! The sentences about cost that the documentation of calls shares.

/// The cost of a class of calls: its round trips, what it waits for, and for how long at most.
macro_rules! cost {
    // Parts of sentences that several classes share.
    (@call_timeout) => {
        "[call timeout](crate::ClientBuilder::call_timeout)"
    };
    (@request_on_its_way) => {
        "It first waits for a request of the same lease that is on its way; a renewal takes at most \
         a sixth of the ttl and never more than 5 s."
    };
    (@wait) => {
        "One round trip if the lock is free; none if a holder in this client hands its lease off. A \
         wait in the queue costs one more round trip to join it. It then costs a heartbeat for each third \
         of the ttl, or about every 10 s with a ttl above 30 s. The second in the queue sends one every \
         second, the third every two seconds, and so on. A waiter that \
         [competes](crate::Fairness::Barging) pays one for each try."
    };
    (@patience) => {
        "The wait has no limit, unless [`wait_limit`](crate::LockOptions::wait_limit) sets one. A store \
         that stays away ends it after 30 s, or after \
         [`retry_store`](crate::ClientBuilder::retry_store) if that is longer. If the store says when it can \
         grant again, the wait continues until then."
    };
    (@limit) => {
        concat!(
            "The wait ends at the limit. A request that is on its way then, and leaving the queue, \
             take at most one ", $crate::cost::cost!(@call_timeout), " more each. A program that ends \
             after the answer leaves nothing in the store."
        )
    };

    (request) => {
        concat!("One round trip, which takes at most one ", $crate::cost::cost!(@call_timeout), ".\n")
    };
    (trying) => {
        concat!(
            "One round trip, which takes at most one ", $crate::cost::cost!(@call_timeout), ". If the \
             store does not answer, releasing what it may have granted takes at most one more.\n"
        )
    };
    (taking) => {
        concat!($crate::cost::cost!(@wait), "\n\n", $crate::cost::cost!(@patience), "\n")
    };
    (taking_within) => {
        concat!($crate::cost::cost!(@wait), "\n\n", $crate::cost::cost!(@limit), "\n")
    };
    (trying_again) => {
        concat!(
            "One round trip, also when the owner has the lock already. It takes at most one ",
            $crate::cost::cost!(@call_timeout), "; if the store does not answer, releasing what it may \
             have granted takes at most one more. It first waits for a try of another task of the same \
             owner.\n"
        )
    };
    (taking_again) => {
        concat!(
            "One round trip if the owner has the lock already. Otherwise: ",
            $crate::cost::cost!(taking)
        )
    };
    (taking_again_within) => {
        concat!(
            "One round trip if the owner has the lock already. Otherwise: ",
            $crate::cost::cost!(taking_within)
        )
    };
    (trying_several) => {
        concat!(
            "One round trip if the store can take all of these names in one step. Otherwise one for \
             each name, and one for each that is released again. Each takes at most one ",
            $crate::cost::cost!(@call_timeout), "; releasing what an unanswered request may have got \
             takes at most one more.\n"
        )
    };
    (taking_several) => {
        concat!(
            "The cost of [`try_lock`](Self::try_lock). If one of the locks is held, then the cost of \
             [`Mutex::lock`](crate::Mutex::lock) for each, one after the other.\n\n",
            $crate::cost::cost!(@patience), "\n"
        )
    };
    (taking_several_within) => {
        concat!(
            "The cost of [`try_lock`](Self::try_lock). If one of the locks is held, then the cost of \
             [`Mutex::lock_within`](crate::Mutex::lock_within) for each, one after the other.\n\n\
             The wait ends at the limit. A request that is on its way then, leaving the queue, and \
             releasing the locks that were taken, take at most one ",
            $crate::cost::cost!(@call_timeout), " more each.\n"
        )
    };
    (entering_plain) => {
        concat!(
            "One round trip if the lock is free. A waiter tries again when the server says that the \
             key has changed, and when the holder's lease ends.\n\n",
            $crate::cost::cost!(@patience), "\n"
        )
    };
    (entering_redisson) => {
        concat!(
            "One round trip if the owner has the lock already. Otherwise: ",
            $crate::cost::cost!(entering_plain)
        )
    };
    (entering_redisson_within) => {
        concat!(
            "One round trip if the owner has the lock already. Otherwise: ",
            $crate::cost::cost!(entering_plain_within)
        )
    };
    (entering_plain_within) => {
        concat!(
            "One round trip if the lock is free. A waiter tries again when the server says that the \
             key has changed, and when the holder's lease ends.\n\n\
             The wait ends at the limit. A request that is on its way then, and releasing what it \
             may have got, take at most one ", $crate::cost::cost!(@call_timeout), " more each.\n"
        )
    };

    (releasing) => {
        concat!(
            "One round trip; none if the lease goes to the next contender of this client. ",
            $crate::cost::cost!(@request_on_its_way), " The release itself takes at most one ",
            $crate::cost::cost!(@call_timeout), ".\n"
        )
    };
    (releasing_hold) => {
        concat!(
            "One round trip, which takes at most one ", $crate::cost::cost!(@call_timeout), "; one \
             more while other holds remain of a lease that is [not renewed](crate::Reentrant::renew). ",
            $crate::cost::cost!(@request_on_its_way), "\n"
        )
    };
    (releasing_several) => {
        concat!(
            "One round trip for each lock, all at the same time; none for a lock that goes to the \
             next contender of this client. Each first waits for a request of its lease that is on its \
             way, and then takes at most one ", $crate::cost::cost!(@call_timeout), ".\n"
        )
    };
    (detaching) => {
        concat!("No round trip. ", $crate::cost::cost!(@request_on_its_way), "\n")
    };
    (request_in_turn) => {
        concat!(
            "One round trip, which takes at most one ", $crate::cost::cost!(@call_timeout), ". ",
            $crate::cost::cost!(@request_on_its_way), "\n"
        )
    };
    (request_in_turn_each) => {
        concat!(
            "One round trip for each lock, all at the same time. Each first waits for a request of \
             its lease that is on its way, and then takes at most one ",
            $crate::cost::cost!(@call_timeout), ".\n"
        )
    };
    (refreshing) => {
        concat!(
            "One round trip if the lease is held. If it is gone, one to learn how, one to release it, \
             and one to take the lock again. Each takes at most one ",
            $crate::cost::cost!(@call_timeout), ".\n"
        )
    };
    (adopting) => {
        concat!(
            "One round trip, and one more if the first is not answered. Each takes at most one ",
            $crate::cost::cost!(@call_timeout), ".\n"
        )
    };
    (prolonging) => {
        concat!(
            "One round trip if the lease is held, and one more if it had expired. Each takes at most one ",
            $crate::cost::cost!(@call_timeout), ".\n"
        )
    };
    (asking_each) => {
        concat!(
            "One round trip for each lock, all at the same time. Each takes at most one ",
            $crate::cost::cost!(@call_timeout), ".\n"
        )
    };

    (running) => {
        concat!(
            "Nothing before the body. After it, ending the lease costs one round trip, or none if the \
             lease goes to the next contender of this client, and takes at most one ",
            $crate::cost::cost!(@call_timeout), ". The body has no time limit of its own.\n"
        )
    };
    (running_here) => {
        concat!(
            "Nothing before the body. After it, ending the lease costs one round trip, and takes at \
             most one ", $crate::cost::cost!(@call_timeout), ". The body has no time limit of its \
             own.\n"
        )
    };
    (running_several) => {
        concat!(
            "Nothing before the body. After it, one round trip for each lock, all at the same time. \
             Each takes at most one ", $crate::cost::cost!(@call_timeout), ". The body has no time \
             limit of its own.\n"
        )
    };
    (locking_and_running) => {
        "The cost of [`lock`](Self::lock), and after the body the cost of a release. The body has no time \
         limit of its own.\n"
    };
    (trying_and_running) => {
        "The cost of [`try_lock`](Self::try_lock), and after the body the cost of a release. The body has \
         no time limit of its own.\n"
    };
    (starting_and_running) => {
        "The cost of [`try_start`](Self::try_start), and after the body the cost of a release. The body \
         has no time limit of its own.\n"
    };
    (leading) => {
        "For each term the cost of [`campaign`](Self::campaign), and of a release at its end. It goes \
         on until `stop` ends it.\n"
    };
    (observing) => {
        concat!(
            "One round trip for each look, at [intervals](crate::Election::look_every). Each takes at \
             most one ", $crate::cost::cost!(@call_timeout), "; the wait for a change has no limit.\n"
        )
    };

    (losing) => {
        "No round trip: it watches the deadline and the renewals, which go on anyway. It returns when \
         the lease ends, which renewals may put off without limit.\n"
    };
    (being_asked) => {
        "One round trip a second for each lease while it is awaited. It returns when the lease ends, \
         which renewals may put off without limit.\n"
    };

    (listing) => {
        concat!(
            "A server gets one request for every 512 of its keys, locks or not, and one for every 128 \
             locks that it has. The memory and embedded stores get one in all. Each request takes at most \
             one ", $crate::cost::cost!(@call_timeout), ", or a second if that is longer, and all of them \
             at most ten.\n"
        )
    };
    (examining) => {
        concat!(
            "Several round trips to each server. If a server does not answer the first, the examination \
             of it ends after one ", $crate::cost::cost!(@call_timeout), ", or a second if that is longer; \
             all of them take at most ten.\n"
        )
    };
    (closing) => {
        "One round trip for each lease that is held or left behind. It waits for the releases \
         that are under way, and for all of that at most [`CLOSE_WITHIN`](crate::CLOSE_WITHIN).\n"
    };
    (connecting) => {
        concat!(
            "For a server its connection, with the handshakes of TLS and of the server, and a few \
             round trips that ask what it is; a quorum connects to its nodes at the same time. A try takes at \
             most two ", $crate::cost::cost!(@call_timeout), "s. There is one try, or as many as fit \
             into [`retry_store`](crate::ClientBuilder::retry_store).\n"
        )
    };
}
pub(crate) use cost;
