//! Whole services that use leasehold, to read and to copy: each is a program in `src/bin`.
//!
//! | program | shows |
//! | --- | --- |
//! | `axum` | a web service whose requests for one thing are served one after the other, by a layer and by an attribute |
//! | `scheduler` | jobs that run once in each period, on whichever host is first |
//! | `shutdown` | a worker that releases everything when it has to end |
//! | `sqlx` | an `UPDATE` that a stale holder of the lock can't make |
//!
//! The smaller examples, one for each kind of lock, are in the folder `examples` of the crate
//! `leasehold`.
