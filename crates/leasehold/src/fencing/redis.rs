//! Checks fences for data that lives in Redis or Valkey itself.
//!
//! A check and a command in two requests are not one step, so the check comes with the command.
//! [`CALL`] is a script that compares the fence, raises the fence record and runs one command. Call
//! it with `EVALSHA` or `EVAL`:
//!
//! ```text
//! EVAL <CALL> 2 {ledger}:fence {ledger}:balance  <fence> 0  DECRBY {ledger}:balance 10
//! ```
//!
//! It answers `[1, reply]`, or `[0, highest fence seen]` when a later holder has been there.
//! Without a command it only raises the record, which is how to begin. Reads go through it too. For
//! work of more than one command, put [`FUNCTION`] in front of a script of your own and begin with
//!
//! ```text
//! local passes, seen = leasehold_touch(KEYS[1], ARGV[1], '0')
//! if not passes then return {0, seen} end
//! ```
//!
//! The record's key has to be in the hash slot of the data (`{ledger}` above), and these scripts
//! alone may write it. Pass fences as text ([`Fence`](crate::Fence) prints as one): the numbers of
//! Lua and JSON are exact up to 2^53 only, and the script compares without them.
//!
//! # The record must outlive the latest holder
//!
//! If the record is gone, the script accepts every writer. By default it is kept for ever: one
//! small key per resource. With an expiry it goes away when the resource was not touched for that
//! long. A holder that comes back after that passes, such as a machine that slept over the weekend.
//! Choose days, not minutes.
//!
//! The server must not evict the record while it keeps the data, so set `maxmemory-policy
//! noeviction`. Under `volatile-*` a server evicts keys with an expiry first, which is why the
//! script refuses an expiry under any other policy. Under `allkeys-*` a record without an expiry
//! can go as well; `leasehold doctor` warns about that. A server that restarts without persistence
//! loses the record, and so does a fail-over to a replica that lacks it. The data that it protects
//! is in the same danger there.
//!
//! # Readers and permits
//!
//! A resource with [shared leases](super#shared-leases) has two records, one for exclusive holders
//! and one for shared ones. [`CALL_SHARED`] checks and raises them, for holders of both kinds:
//!
//! ```text
//! EVAL <CALL_SHARED> 3 {ledger}:fence {ledger}:readers {ledger}:balance  <fence> 0 s  GET {ledger}:balance
//! ```
//!
//! `./check` runs the scripts on a real server.

/// The Lua function `leasehold_touch(record, fence, expiry_ms, readers, shared)`, for scripts of
/// your own; its head comment says what it takes and returns.
pub const FUNCTION: &str = include_str!("guard.lua");

/// The whole script. Keys: the fence record, then the command's keys. Arguments: the fence in
/// decimal, the record's expiry in ms (`0` for none), then the command and its arguments.
pub const CALL: &str = concat!(include_str!("guard.lua"), "\n", include_str!("call.lua"));

/// The whole script for a resource with shared leases. Keys: the record of exclusive holders, the
/// record of shared ones, then the command's keys. Arguments: the fence in decimal, the record's
/// expiry in ms (`0` for none), `x` or `s` for the kind of lease, then the command and its
/// arguments.
pub const CALL_SHARED: &str =
    concat!(include_str!("guard.lua"), "\n", include_str!("call_shared.lua"));
