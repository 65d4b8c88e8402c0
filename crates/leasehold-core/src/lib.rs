//! The rules of leasehold's locks, without any I/O.
//!
//! This crate is independent of clocks and runtimes: every function that needs the time takes it as
//! an argument. It has these parts:
//!
//! - the words: [`Key`], [`Token`], [`Ttl`] and the fencing token ([`Fence`]);
//! - the arithmetic of a lease on its holder's clock ([`LeaseState`]), and the machine of a held
//!   lease ([`LeaseMachine`]);
//! - the retry strategies ([`retry`]);
//! - the lock table, which defines each operation ([`table`]);
//! - the [`Store`] trait for stores, and the findings of an examination of one ([`doctor`]).
//!
//! Users depend on the `leasehold` crate; implementors of stores depend on this one.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod clock;
mod cooldown;
pub mod doctor;
#[cfg(feature = "serde")]
mod document;
mod error;
pub mod escape;
mod fence;
#[cfg(feature = "serde")]
mod fixed;
mod key;
mod label;
mod lease;
pub mod length;
mod machine;
#[cfg(leasehold_planted)]
pub mod planted;
pub mod proof;
mod reason;
pub mod retry;
mod store;
pub mod table;
mod token;
mod ttl;

pub use clock::{Clock, Moment};
pub use cooldown::Cooldown;
pub use error::{Effect, Error, ErrorKind, Result};
pub use fence::{Fence, FenceBlock};
pub use key::{IntoKey, Key};
pub use label::{Metadata, OwnerName};
pub use lease::{LeaseState, LeaseStatus, margin};
pub use machine::{
    Actions, Admission, Due, Ended, HoldTerms, Lasting, LeaseMachine, LengthChange, LossReason,
    Lost, Relay, Renewal,
};
pub use reason::Reason;
pub use store::{
    Acquire, AcquireAll, AcquireRequest, Already, Ask, AskRequest, Bond, BoxFuture, Busy, Call,
    Capability, Convert, ConvertRequest, Converted, Examine, ForceRelease, ForceReleaseRequest,
    Granted, HolderInfo, Kind, LOG_MAX, Leave, LeaveRequest, ListRequest, Listener, Listing,
    LockInfo, LockLog, LogEntry, LogId, Method, Mode, Place, QueueRequest, RESULT_MAX, RawRequest,
    Refusal, Release, ReleaseRequest, RemembersFor, Renew, RenewRequest, SetLimit, SetLimitRequest,
    Store, StoreLayer, VALID_FOR, WaiterInfo, Waiting, Wake, checked_log, settle_log,
};
pub use token::{ClientId, Token};
pub use ttl::Ttl;
