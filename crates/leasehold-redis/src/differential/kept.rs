//! Saves the server's data of some locks and restores it, for tests of the server alone.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use leasehold_core::{
    AcquireAll, AskRequest, Convert, Error, ForceReleaseRequest, Key, LeaveRequest, Renew,
    SetLimitRequest, Store as _,
};
use redis::Value;

use super::operation::{Operation, Step, owner};
use super::{Known, WITHIN, World, token};

/// The server's data of some locks, and the fences that its clients have seen.
pub(super) struct Kept {
    pub(super) locks: Vec<KeptLock>,
    /// The highest sequence that each store has seen.
    seen: Vec<u64>,
}

/// The data of a key.
pub(super) struct KeptLock {
    record: String,
    /// Restores the key, if it exists.
    dump: Option<Vec<u8>>,
    /// Negative for a missing key, or one without an expiry.
    pub(super) lives_ms: i64,
    pub(super) content: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl World {
    pub(super) async fn set_clock(&self, at_us: u64) {
        let mut clock = redis::pipe();
        let (seconds, micros) = (at_us / 1_000_000, at_us % 1_000_000);
        clock.cmd("MSET").arg("clock:s").arg(seconds).arg("clock:us").arg(micros);
        self.ask(&clock).await;
    }

    pub(super) async fn kept<'k>(&self, keys: impl IntoIterator<Item = &'k Key>) -> Kept {
        let records: Vec<_> =
            keys.into_iter().map(|key| self.stores[0].shared.names.record(key)).collect();
        let mut questions = redis::pipe();
        for record in &records {
            questions.cmd("DUMP").arg(record);
            questions.cmd("PTTL").arg(record);
            questions.cmd("HGETALL").arg(record);
        }
        let answers = self.ask(&questions).await;
        let locks = records.into_iter().zip(answers.chunks(3)).map(|(record, answer)| {
            let [dump, Value::Int(lives_ms), fields] = answer else { panic!("{answer:?}") };
            KeptLock {
                record,
                dump: redis::from_redis_value(dump.clone()).unwrap(),
                lives_ms: *lives_ms,
                content: redis::from_redis_value(fields.clone()).unwrap(),
            }
        });
        let locks = locks.collect();
        let seen =
            self.stores.iter().map(|store| store.shared.highest_sequence.load(Ordering::Relaxed));
        Kept { locks, seen: seen.collect() }
    }

    pub(super) async fn put_back(&self, before: &Kept) {
        for (store, seen) in self.stores.iter().zip(&before.seen) {
            store.shared.highest_sequence.store(*seen, Ordering::Relaxed);
        }
        let mut commands = redis::pipe();
        for KeptLock { record, dump, lives_ms, .. } in &before.locks {
            match dump {
                Some(dump) => {
                    commands.cmd("RESTORE").arg(record).arg(*lives_ms).arg(dump).arg("REPLACE");
                }
                None => {
                    commands.cmd("DEL").arg(record);
                }
            }
        }
        self.ask(&commands).await;
    }

    /// Carries out the operation on the server alone. For each answer, returns whether it needs
    /// confirmation.
    pub(super) async fn attempt(
        &self,
        step: &Step,
        key: &Key,
        known: &Known,
    ) -> Vec<Result<bool, Error>> {
        let store = &self.stores[usize::try_from(step.epoch).unwrap()];
        match &step.operation {
            Operation::Acquire(taking) => {
                let answer = store.acquire(&taking.request(key, known), WITHIN).await;
                vec![answer.map(|answer| answer.fences().is_some())]
            }
            Operation::AcquireAll(taking) => {
                let answer = store.acquire_all(&[taking.request(key, known)], WITHIN).await;
                vec![answer.map(|answer| matches!(answer, AcquireAll::Granted(_)))]
            }
            Operation::Convert(change) => {
                let answer = store.convert(&change.request(key, known), WITHIN).await;
                vec![answer.map(|answer| matches!(answer, Convert::Converted(_)))]
            }
            Operation::SetLimit(limit) => {
                let limit = NonZeroU32::new(*limit).unwrap();
                let request = SetLimitRequest::new(key.clone(), limit);
                vec![store.set_limit(&request, WITHIN).await.map(|_| false)]
            }
            Operation::Ask { who, later, by } => {
                let mut request = AskRequest::new(key.clone(), owner(*by));
                request.fence =
                    who.map(|who| known.fences(token(who)).first().saturating_add(*later));
                vec![store.ask(&request, WITHIN).await.map(|_| false)]
            }
            Operation::Renew(renewals) => {
                let requests: Vec<_> =
                    renewals.iter().map(|renewal| renewal.request(key, known)).collect();
                let answers = store.renew(&requests, WITHIN).await.into_iter();
                let proves = |answer| matches!(answer, Renew::Renewed | Renew::Asked);
                answers.map(|answer| answer.map(proves)).collect()
            }
            Operation::Release(ending) => {
                vec![store.release(&ending.request(key, known), WITHIN).await.map(|_| false)]
            }
            Operation::Leave { who, reopen } => {
                let mut request = LeaveRequest::new(key.clone(), token(*who));
                request.reopen = *reopen;
                vec![store.leave(&request, WITHIN).await.map(|_| false)]
            }
            Operation::ForceRelease { who, later } => {
                let fence = known.fences(token(*who)).first().saturating_add(*later);
                let request = ForceReleaseRequest::new(key.clone(), fence);
                vec![store.force_release(&request, WITHIN).await.map(|_| false)]
            }
        }
    }
}
