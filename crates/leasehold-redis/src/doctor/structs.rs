//! Checks that a server's scripts pack and unpack numbers as leasehold needs it.

use std::sync::LazyLock;

use leasehold_core::Result;
use leasehold_core::doctor::{Finding, Severity};
use redis::Value;

use super::rights::Spare;
use crate::connect::transport::Transport;
use crate::script::Script;
use crate::script::request::Deadline;
use crate::store::RedisStore;
use crate::wire::forms::{FAR, Pack as _};

static REPACK: LazyLock<Script> =
    LazyLock::new(|| Script::without_comments(include_str!("../scripts/repack.lua")));

/// Every kind of field in the forms, with its largest number.
fn sample() -> [(&'static str, Vec<u8>); 2] {
    let (mut all, mut place) = (Vec::new(), Vec::new());
    all.byte(u8::MAX)
        .short(u16::MAX.into())
        .int(u32::MAX)
        .double(FAR)
        .number_or_none(None)
        .bytes(&[0xa5; 16]);
    place.double(FAR - 1).reverse();
    [("<BHIddc16", all), (">d", place)]
}

/// Judges the answer; `None` if it is right.
fn judge(answer: &Value) -> Option<Finding> {
    let wanted = sample().map(|(_, bytes)| bytes).concat();
    let found = match answer {
        Value::BulkString(packed) if *packed == wanted => return None,
        Value::BulkString(_) => "the server's `struct` library packs numbers in another way",
        _ => "the server's scripts have no `struct` library, which Redis and Valkey have",
    };
    let means = "locks can't be taken, renewed or released, since no script runs";
    let finding = Finding::new(Severity::Problem, "scripts", found, means);
    Some(
        finding.advise(
            "use Redis 6.2 or later, Valkey 8.0 or later, or a service that runs one of them",
        ),
    )
}

impl RedisStore {
    /// Runs a script that unpacks and packs like leasehold's. An error is left to the trial of a
    /// real script.
    pub(super) async fn try_structs(
        &self,
        server: &dyn Transport,
        spare: &Spare,
        deadline: Deadline,
    ) -> Result<Option<Finding>> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(&REPACK.source).arg(1).arg(&spare.record);
        for (form, bytes) in sample() {
            eval.arg(form).arg(bytes);
        }
        let answer = self.ask(server, vec![eval], deadline).await?.pop();
        Ok(answer.and_then(std::result::Result::ok).and_then(|answer| judge(&answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_packs_otherwise_is_no_better_than_none() {
        let right = sample().map(|(_, bytes)| bytes).concat();
        let found = |answer| judge(&answer).map(|it| it.found.into_owned());
        assert_eq!(found(Value::BulkString(right.clone())), None);
        for wrong in [right[1..].to_vec(), Vec::new()] {
            assert!(found(Value::BulkString(wrong)).unwrap().contains("in another way"));
        }
        assert!(found(Value::Nil).unwrap().contains("no `struct` library"));
    }
}
