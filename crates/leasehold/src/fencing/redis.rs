//! Checks fences for data that lives in Redis or Valkey itself.
//!
//! A check and a command in two requests are not one step, so the check comes with the command:
//! [`CALL`] is a script that compares the fence, raises the guard and runs one command. Call it
//! with `EVALSHA` or `EVAL`:
//!
//! ```text
//! EVAL <CALL> 2 {ledger}:fence {ledger}:balance  <fence> 0  DECRBY {ledger}:balance 10
//! ```
//!
//! It answers `[1, reply]`, or `[0, highest fence seen]` when a later holder has been there.
//! Without a command it raises the guard only, which is how to begin. Reads go through it too.
//! For work of more than one command, put [`FUNCTION`] in front of a script of your own and begin
//! with
//!
//! ```text
//! local passes, seen = leasehold_touch(KEYS[1], ARGV[1], '0')
//! if not passes then return {0, seen} end
//! ```
//!
//! The guard's key has to be in the hash slot of the data (`{ledger}` above), and must be written
//! by nothing else. Pass fences as text ([`Fence`](crate::Fence) prints as one): the numbers of
//! Lua and JSON are exact up to 2^53 only, and the script compares without them.
//!
//! # The guard must outlive the latest holder
//!
//! A guard that is gone refuses no writer. By default it is kept for ever: one small key per
//! resource. With an expiry it goes away when the resource was not touched for that long, and a
//! holder that comes back after that (a machine that slept over the weekend) is let in. Choose
//! days, not minutes.
//!
//! The server must not evict the guard while it keeps the data, so set `maxmemory-policy
//! noeviction`. Under `volatile-*` a server evicts keys with an expiry first, which is why the script
//! refuses an expiry under any other policy. Under `allkeys-*` a guard without an expiry can go as
//! well; `leasehold doctor` warns about that. A guard is lost, too, with a server that restarts without
//! persistence, and with a fail-over to a replica that had not got it; there the data it protects is
//! in the same danger.
//!
//! # Readers and permits
//!
//! A resource with [shared leases](super#shared-leases) has two guards, one for exclusive holders and
//! one for shared ones. [`CALL_SHARED`] checks and raises them, for holders of both sorts:
//!
//! ```text
//! EVAL <CALL_SHARED> 3 {ledger}:fence {ledger}:readers {ledger}:balance  <fence> 0 s  GET {ledger}:balance
//! ```
//!
//! `./check` runs the scripts on a real server.

/// The Lua function `leasehold_touch(guard, fence, expiry_ms, readers, shared)`, for scripts of your
/// own; its head comment says what it takes and returns.
pub const FUNCTION: &str = include_str!("guard.lua");

/// The whole script. Keys: the guard, then those of the command. Arguments: the fence in decimal,
/// the guard's expiry in ms (`0` for none), then the command and its arguments.
pub const CALL: &str = concat!(include_str!("guard.lua"), "\n", include_str!("call.lua"));

/// The whole script for a resource with shared leases. Keys: the guard of exclusive holders, the
/// guard of shared ones, then those of the command. Arguments: the fence in decimal, the guard's
/// expiry in ms (`0` for none), `x` or `s` for the sort of lease, then the command and its arguments.
pub const CALL_SHARED: &str =
    concat!(include_str!("guard.lua"), "\n", include_str!("call_shared.lua"));
