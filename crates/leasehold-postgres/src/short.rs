//! The short ways: a function in the database takes, renews or releases locks without a queue.
//!
//! It carries out what the table would, in one round trip. Otherwise its answer is the row, for a
//! step of the table.

use std::collections::HashSet;

use futures_util::future::join_all;
use leasehold_core::{
    Acquire, AcquireRequest, Effect, Error, ErrorKind, FenceBlock, Granted, Key, Mode, Release,
    ReleaseRequest, Renew, RenewRequest, Result, Token,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::classify::{Deadline, Fault, Next};
use crate::pool::Param;
use crate::row::{Found, Uuid, fence, get, time, to_sql_time};
use crate::step::{Step, not_after};
use crate::store::{PostgresStore, Shared};

/// Renewals in one statement: it takes some 15 ms.
const RENEWED_AT_ONCE: usize = 1_000;

/// The outcome of a request.
pub(crate) enum Short {
    /// It was carried out. The row has this last fence.
    Done(i64),
    /// It was not, and this is the lock, if it was read.
    Missed(Option<Box<Found>>),
}

fn microseconds(length: std::time::Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

fn uuid(token: Token) -> Uuid {
    Uuid(*token.as_bytes())
}

fn is_takeable(request: &AcquireRequest) -> bool {
    request.mode == Mode::Exclusive
        && request.after.is_none()
        && request.cooldown.is_none()
        && i32::try_from(request.fence_block.get()).is_ok()
        && i32::try_from(request.holds.get()).is_ok()
        && !request.owner.as_str().contains('\0')
        && !request.metadata.as_str().contains('\0')
}

impl PostgresStore {
    /// Whether the short way is worth a try: not while others in this process have steps on the
    /// name, or lock its row.
    fn is_short(&self, key: &Key) -> bool {
        !self.shared.table_alone && self.free_turn(key).is_some_and(|turn| *turn == 0)
    }

    pub(crate) async fn take(
        &self,
        request: &AcquireRequest,
        deadline: Deadline,
    ) -> Result<Acquire, Fault> {
        let mut found = None;
        if is_takeable(request) && self.is_short(&request.key) {
            match self.together(request, deadline).await? {
                Short::Done(last) => {
                    self.wrote();
                    let fences = FenceBlock::up_to(fence(last)?, request.fence_block.get());
                    return Ok(Acquire::Granted(Granted::new(fences)));
                }
                Short::Missed(missed) => found = missed.map(|found| *found),
            }
        }
        let step = Step::new("acquire").lease(request);
        self.carry_out(&request.key, request, step, found, deadline).await
    }

    pub(crate) async fn end(
        &self,
        request: &ReleaseRequest,
        deadline: Deadline,
    ) -> Result<Release, Fault> {
        let mut found = None;
        let is_plain = request.cooldown.is_none() && request.remaining == 0;
        if is_plain && self.is_short(&request.key) {
            match self.together(request, deadline).await? {
                Short::Done(_) => return Ok(Release::Released),
                Short::Missed(missed) => found = missed.map(|found| *found),
            }
        }
        self.carry_out(&request.key, request, Step::returning("release"), found, deadline).await
    }

    /// Takes free locks as long as the requests are valid; one answer for each.
    pub(crate) async fn taken(
        &self,
        requests: &[&AcquireRequest],
        valid: Deadline,
        deadline: Deadline,
    ) -> Result<Vec<Result<Short>>, Fault> {
        let Shared { statements, clock, .. } = &*self.shared;
        let Some(now) = clock.now() else {
            return Ok(requests.iter().map(|_| Ok(Short::Missed(None))).collect());
        };
        macro_rules! column {
            ($request:ident => $value:expr) => {
                requests.iter().map(|$request| $value).collect::<Vec<_>>()
            };
        }
        let not_after = to_sql_time(not_after(valid, now));
        let keys = column!(r => &r.key);
        let tokens = column!(r => uuid(r.token));
        let ttls = column!(r => microseconds(r.ttl.duration()));
        let fences = column!(r => r.fence_block.get().cast_signed());
        let holds = column!(r => r.holds.get().cast_signed());
        let owners = column!(r => r.owner.as_str());
        let metadata = column!(r => r.metadata.as_str());
        let names = column!(r => r.key.as_str());
        let versions = column!(_r => fastrand::i64(..));
        let params: [Param<'_>; 9] = [
            (&not_after, Type::TIMESTAMPTZ),
            (&names, Type::TEXT_ARRAY),
            (&versions, Type::INT8_ARRAY),
            (&tokens, Type::UUID_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&fences, Type::INT4_ARRAY),
            (&holds, Type::INT4_ARRAY),
            (&owners, Type::TEXT_ARRAY),
            (&metadata, Type::TEXT_ARRAY),
        ];
        self.short(&keys, &versions, &statements.take, &params, deadline).await
    }

    /// Releases leases; one answer for each.
    pub(crate) async fn released(
        &self,
        requests: &[&ReleaseRequest],
        deadline: Deadline,
    ) -> Result<Vec<Result<Short>>, Fault> {
        let keys: Vec<&Key> = requests.iter().map(|request| &request.key).collect();
        let names: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
        let versions: Vec<i64> = requests.iter().map(|_| fastrand::i64(..)).collect();
        let tokens: Vec<Uuid> = requests.iter().map(|request| uuid(request.token)).collect();
        let in_time: Vec<bool> = requests.iter().map(|request| request.in_time).collect();
        let params: [Param<'_>; 4] = [
            (&names, Type::TEXT_ARRAY),
            (&versions, Type::INT8_ARRAY),
            (&tokens, Type::UUID_ARRAY),
            (&in_time, Type::BOOL_ARRAY),
        ];
        self.short(&keys, &versions, &self.shared.statements.release, &params, deadline).await
    }

    async fn short(
        &self,
        keys: &[&Key],
        versions: &[i64],
        sql: &str,
        params: &[Param<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Result<Short>>, Fault> {
        let Shared { clock, .. } = &*self.shared;
        let hash = keys.first().map_or(0, |key| self.hash(key));
        let rows = match self.change(sql, hash, params, deadline).await {
            // The table tries it again.
            Err(Fault { next: Next::Again | Next::Locked, .. }) => {
                return Ok(keys.iter().map(|_| Ok(Short::Missed(None))).collect());
            }
            rows => rows?,
        };
        if rows.len() != keys.len() {
            let error = Error::new(ErrorKind::Protocol, "the server's answer lacks rows");
            return Err(error.with_effect(Effect::Unknown).into());
        }
        if let Some(row) = rows.last() {
            clock.shows(time(get(row, "now")?));
        }
        let answer = |((key, version), row): ((&&Key, &i64), &Row)| {
            Ok(if get::<Option<i64>>(row, "version")? == Some(*version) {
                Short::Done(get::<Option<i64>>(row, "last_fence")?.unwrap_or_default())
            } else {
                Short::Missed(Some(Box::new(Found::read(key, row)?)))
            })
        };
        Ok(keys.iter().zip(versions).zip(&rows).map(answer).collect())
    }

    /// Renews leases, each name's first in a statement with many.
    pub(crate) async fn renew_each(
        &self,
        requests: &[RenewRequest],
        deadline: Deadline,
    ) -> Vec<Result<Renew, Fault>> {
        let mut names = HashSet::new();
        let mut is_short = |request: &'_ RenewRequest| {
            !self.shared.table_alone
                && request.successor.is_none()
                && names.insert(request.key.clone())
        };
        let numbered = requests.iter().enumerate();
        let batch: Vec<usize> =
            numbered.filter(|(_, request)| is_short(request)).map(|(at, _)| at).collect();
        let batches =
            batch.chunks(RENEWED_AT_ONCE).map(|batch| self.renewed(requests, batch, deadline));
        let mut answers: Vec<Option<Result<Renew, Fault>>> =
            requests.iter().map(|_| None).collect();
        for (batch, renewed) in batch.chunks(RENEWED_AT_ONCE).zip(join_all(batches).await) {
            match renewed {
                Ok(renewed) => {
                    for at in renewed {
                        if let Some(answer) = answers.get_mut(at) {
                            *answer = Some(Ok(Renew::Renewed));
                        }
                    }
                }
                Err(Fault { next: Next::Again | Next::Locked, .. }) => {}
                Err(fault) => {
                    for at in batch {
                        if let Some(answer) = answers.get_mut(*at) {
                            *answer = Some(Err(fault.clone()));
                        }
                    }
                }
            }
        }
        let all = answers.into_iter().zip(requests).map(|(answer, request)| async move {
            match answer {
                Some(answer) => answer,
                None => {
                    let step = Step::new("renew").of(request.ttl.duration());
                    self.carry_out(&request.key, request, step, None, deadline).await
                }
            }
        });
        join_all(all).await
    }

    /// Renews the leases with these numbers. Returns the numbers of the renewed ones.
    pub(crate) async fn renewed(
        &self,
        all: &[RenewRequest],
        batch: &[usize],
        deadline: Deadline,
    ) -> Result<Vec<usize>, Fault> {
        let Shared { statements, clock, .. } = &*self.shared;
        let Some(now) = clock.now() else { return Ok(Vec::new()) };
        macro_rules! column {
            ($request:ident => $value:expr) => {
                batch
                    .iter()
                    .filter_map(|at| all.get(*at))
                    .map(|$request| $value)
                    .collect::<Vec<_>>()
            };
        }
        let not_after = to_sql_time(not_after(deadline, now));
        let names = column!(r => r.key.as_str());
        let versions = column!(_r => fastrand::i64(..));
        let tokens = column!(r => uuid(r.token));
        let ttls = column!(r => microseconds(r.ttl.duration()));
        let fences = column!(r => r.fences.last().as_i64());
        let shorten = column!(r => r.shorten);
        let params: [Param<'_>; 7] = [
            (&not_after, Type::TIMESTAMPTZ),
            (&names, Type::TEXT_ARRAY),
            (&versions, Type::INT8_ARRAY),
            (&tokens, Type::UUID_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&fences, Type::INT8_ARRAY),
            (&shorten, Type::BOOL_ARRAY),
        ];
        let hash = batch.first().and_then(|at| all.get(*at)).map_or(0, |one| self.hash(&one.key));
        let rows = self.change(&statements.renew, hash, &params, deadline).await?;
        let Some(row) = rows.first() else { return Ok(Vec::new()) };
        clock.shows(time(get(row, "now")?));
        let renewed: Vec<i32> = get(row, "renewed")?;
        let renewed = renewed.into_iter().filter_map(|place| usize::try_from(place).ok());
        Ok(renewed.filter_map(|place| batch.get(place.checked_sub(1)?).copied()).collect())
    }
}
