//! Held leases: keeping them alive, changing them, ending them.

mod adopt;
mod ahead;
pub(crate) mod change_mode;
pub(crate) mod detached;
pub(crate) mod guard;
pub(crate) mod handle;
pub(crate) mod held_lease;
pub(crate) mod held_leases;
pub(crate) mod loss;
pub(crate) mod not_changed;
pub(crate) mod orphans;
pub(crate) mod outcome;
pub(crate) mod prolonged;
pub(crate) mod release;
pub(crate) mod renewal;
pub(crate) mod run;
pub(crate) mod succession;
