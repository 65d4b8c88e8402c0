//! Lists locks: finds their keys, and describes them in pipelines.

use std::collections::BTreeMap;

use leasehold_core::{Error, ErrorKind, Key, ListRequest, Listing, LockInfo, Result};

use super::RedisStore;
use crate::classify::Verdict;
use crate::connect::transport::Transport;
use crate::script::call::Request;
use crate::script::request::{Deadline, Delivery};
use crate::wire::reply;

/// Names that one `SCAN` looks at, and locks that one pipeline describes.
const SCAN_COUNT: usize = 512;
const INSPECT_CHUNK: usize = 128;

/// A longer list serves no reader, and its parts would be of different moments.
const LIST_MAX: usize = 100_000;

/// What was found so far: locks in use, and why others could not be read.
type Found = BTreeMap<Key, Result<LockInfo>>;

impl RedisStore {
    /// Adds all locks in use on one server that a pattern matches. It drops the names of idle
    /// locks, which may be many more: a server remembers them for their fences.
    async fn scan(
        &self,
        server: &dyn Transport,
        pattern: &str,
        found: &mut Found,
        deadline: Deadline,
    ) -> Result<()> {
        let failed = |verdict: Verdict| self.error(&verdict, "list", None);
        let mut cursor = String::from("0");
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
            scan.arg("TYPE").arg("hash");
            let answer = server.one(&Request::plain(&scan), deadline.of_one()).await;
            let answer = answer.map_err(failed)?;
            let (next, names): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer.value)
                .map_err(|_| {
                    let why = "the server's answer to SCAN is not a list";
                    self.named(Error::new(ErrorKind::Protocol, why), "list", None)
                })?;
            let mut keys: Vec<Key> =
                names.iter().filter_map(|name| self.shared.names.lock(name)).collect();
            // A scan may find a name twice.
            keys.retain(|key| !found.contains_key(key));
            self.describe(&keys, found, deadline).await?;
            if found.len() > LIST_MAX {
                return Err(self.named(
                    Error::new(
                        ErrorKind::Unsupported,
                        format!("more than {LIST_MAX} locks are in use; give a longer prefix"),
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

    /// Adds the locks that are in use, and the locks that can't be read.
    async fn describe(&self, keys: &[Key], found: &mut Found, deadline: Deadline) -> Result<()> {
        for chunk in keys.chunks(INSPECT_CHUNK) {
            let calls: Vec<_> = chunk.iter().map(|key| self.inspect_call(key)).collect();
            let answers = self.run_all(&calls, Delivery::None, deadline.of_one()).await;
            for (key, answer) in chunk.iter().zip(answers) {
                let info = answer
                    .map_err(|verdict| verdict.to_error())
                    .and_then(|answer| {
                        reply::inspect(answer.value, key, self.shared.fence_retention)
                    })
                    .map_err(|error| self.named(error, "list", Some(key)));
                let item = match info {
                    Ok(info) => info.map(Ok),
                    Err(error) => match error.kind() {
                        // What is not a lock is not listed.
                        ErrorKind::Foreign => None,
                        ErrorKind::Corrupt | ErrorKind::Protocol | ErrorKind::Unsupported => {
                            Some(Err(error))
                        }
                        _ => return Err(error),
                    },
                };
                found.extend(item.map(|item| (key.clone(), item)));
            }
        }
        Ok(())
    }

    pub(super) async fn list_all(
        &self,
        request: &ListRequest,
        deadline: Deadline,
    ) -> Result<Listing> {
        let failed = |verdict: Verdict| self.error(&verdict, "list", None);
        let pattern = self.shared.names.pattern(&request.prefix);
        let mut found = Found::new();
        match self.shared.transport.parts(deadline.of_one()).await.map_err(failed)? {
            None => self.scan(&*self.shared.transport, &pattern, &mut found, deadline).await?,
            Some(parts) if !parts.whole => {
                return Err(failed(Verdict::nobody_yet(
                    "some slots have no node, and their locks would be missing; see `redis-cli \
                     --cluster check`",
                )));
            }
            Some(parts) => {
                for part in parts.servers {
                    self.scan(&*part.server, &pattern, &mut found, deadline).await?;
                }
            }
        }
        let mut listing = Listing::default();
        for item in found.into_values() {
            match item {
                Ok(info) => listing.locks.push(info),
                Err(error) => listing.unreadable.push(error),
            }
        }
        Ok(listing)
    }
}
