//! Listing locks: finding their records, and describing them in pipelines.

use std::collections::BTreeSet;

use leasehold_core::{Error, ErrorKind, Key, ListRequest, LockInfo, Result};

use super::RedisStore;
use crate::classify::Verdict;
use crate::reply;
use crate::transport::{Care, Deadline, Request, Transport};

/// Names that one `SCAN` looks at, and locks that one pipeline describes.
const SCAN_COUNT: usize = 512;
const INSPECT_CHUNK: usize = 128;

/// More locks than anybody reads; a list of them would no longer be of one moment.
const LIST_MAX: usize = 100_000;

impl RedisStore {
    /// The names of all locks on one server that a pattern matches.
    async fn scan(
        &self,
        server: &dyn Transport,
        pattern: &str,
        keys: &mut BTreeSet<Key>,
        deadline: Deadline,
    ) -> Result<()> {
        let failed = |verdict: Verdict| self.error(&verdict, "list", None);
        let mut cursor = String::from("0");
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
            scan.arg("TYPE").arg("hash");
            let answer = server.one(&Request::plain(&scan), deadline).await.map_err(failed)?;
            let (next, found): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer.value)
                .map_err(|_| {
                    let why = "the server's answer to SCAN is not a list";
                    self.named(Error::new(ErrorKind::Protocol, why), "list", None)
                })?;
            keys.extend(found.iter().filter_map(|record| self.shared.names.lock(record)));
            if keys.len() > LIST_MAX {
                return Err(self.named(
                    Error::new(
                        ErrorKind::Unsupported,
                        format!("there are more than {LIST_MAX} locks; ask for a longer prefix"),
                    ),
                    "list",
                    None,
                ));
            }
            cursor = next;
            if cursor == "0" {
                return Ok(());
            }
            if deadline.is_over() {
                return Err(failed(deadline.missed()));
            }
        }
    }

    pub(super) async fn list_all(
        &self,
        request: &ListRequest,
        deadline: Deadline,
    ) -> Result<Vec<LockInfo>> {
        let failed = |verdict: Verdict| self.error(&verdict, "list", None);
        let pattern = self.shared.names.pattern(&request.prefix);
        let mut keys = BTreeSet::new();
        match self.shared.transport.parts(deadline).await.map_err(failed)? {
            None => self.scan(&*self.shared.transport, &pattern, &mut keys, deadline).await?,
            Some(parts) if !parts.whole => {
                return Err(failed(Verdict::nobody_yet(
                    "some slots are with no node of the cluster, and locks in them would be missing",
                )));
            }
            Some(parts) => {
                for part in parts.servers {
                    self.scan(&*part.server, &pattern, &mut keys, deadline).await?;
                }
            }
        }
        let keys: Vec<_> = keys.into_iter().collect();
        let mut infos = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(INSPECT_CHUNK) {
            let calls: Vec<_> = chunk.iter().map(|key| self.inspect_call(key)).collect();
            for (key, answer) in chunk.iter().zip(self.run_all(&calls, Care::None, deadline).await)
            {
                let info = answer
                    .map_err(|verdict| verdict.to_error())
                    .and_then(|answer| reply::inspect(answer.value, key));
                match info {
                    Ok(info) => infos.extend(info),
                    // What is not a lock is not listed.
                    Err(error) if error.kind() == ErrorKind::Foreign => {}
                    Err(error) => return Err(self.named(error, "list", Some(key))),
                }
            }
        }
        Ok(infos)
    }
}
