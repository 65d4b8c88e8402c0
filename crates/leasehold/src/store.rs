//! The types that stores are made of: to write one, to wrap one, or to call one directly.
//!
//! A client needs only [`Store`] itself. A store of your own implements it, by the rules in
//! [`table`]: if it can keep a [`LockEntry`](table::LockEntry) and change it in one step, it is a
//! few calls of that. A store that stands before another and sees its calls is a [`StoreLayer`].
//! Give either to [`Client::new`](crate::Client::new).
//!
//! A client's own store is [`Client::store`](crate::Client::store).

pub use crate::connect::read_url::StoreUrl;
pub use crate::spread::SpreadStore;

pub use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Already, Ask, AskRequest, Bond, BoxFuture, Busy, Call,
    Capability, ClientId, Clock, Convert, ConvertRequest, Converted, Effect, Error, ErrorKind,
    Examine, Fence, FenceBlock, ForceRelease, ForceReleaseRequest, Granted, HolderInfo, Key, Kind,
    LOG_MAX, LeaseState, LeaseStatus, Leave, LeaveRequest, ListRequest, Listener, Listing,
    LockInfo, LockLog, LogEntry, LogId, Metadata, Method, Mode, Moment, OwnerName, Place,
    QueueRequest, RawRequest, Reason, Refusal, Release, ReleaseRequest, RemembersFor, Renew,
    RenewRequest, Result, SetLimit, SetLimitRequest, Store, StoreLayer, Token, Ttl, WaiterInfo,
    Waiting, Wake, checked_log, doctor, escape, length, proof, table,
};
