//! Carries requests to a server or a cluster, over connections of any kind.

use std::fmt::Debug;
use std::sync::Arc;

use leasehold_core::BoxFuture;

use crate::classify::Verdict;
use crate::script::call::Request;
use crate::script::request::{Answer, Deadline};
use crate::topology::addresses::Heard;
use crate::topology::sentinel::Said;

/// Sends each request once. It repeats one only at another server, after the first has reported
/// that it did not carry the request out.
pub(crate) trait Transport: Debug + Send + Sync + 'static {
    /// One request and its answer. An error that the server returns becomes a [`Verdict`].
    fn one<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Answer, Verdict>>;

    /// Several requests in one go, one answer for each in order.
    fn many<'a>(
        &'a self,
        requests: &'a [Request<'a>],
        deadline: Deadline,
    ) -> BoxFuture<'a, Vec<Result<Answer, Verdict>>>;

    /// One request over an open connection; `None` if there is no such connection. The first poll
    /// fixes its order among other requests.
    fn at_once<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _deadline: Deadline,
    ) -> Option<BoxFuture<'a, Result<Answer, Verdict>>> {
        None
    }

    /// Whether each of its [open connections](Self::at_once) reaches all locks.
    fn combines(&self) -> bool {
        false
    }

    /// Whether the locks are on several servers. Then a script can only be about locks of one slot.
    fn is_spread(&self) -> bool {
        false
    }

    /// Whether another server may replace one, and may lack what that one kept.
    fn fails_over(&self) -> bool {
        false
    }

    /// The servers that together keep all locks; `None` if one server keeps them.
    fn parts(&self, _deadline: Deadline) -> BoxFuture<'_, Result<Option<Parts>, Verdict>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// The answers of the sentinels; `None` if there are none.
    fn sentinels(&self) -> BoxFuture<'_, Option<Vec<Said>>> {
        Box::pin(std::future::ready(None))
    }

    /// What is at each address of the server; `None` if its name has only one.
    fn addresses(&self) -> BoxFuture<'_, Option<Vec<Heard>>> {
        Box::pin(std::future::ready(None))
    }

    /// Another server, reached and logged in to in the same way as this one.
    fn neighbour(&self, _host: &str, _port: u16) -> Option<Part> {
        None
    }
}

/// The servers of a cluster.
pub(crate) struct Parts {
    pub(crate) servers: Vec<Part>,
    /// Whether every slot is with one of them.
    pub(crate) whole: bool,
    /// The answers of the nodes in the URL to `CLUSTER NODES`, by location.
    pub(crate) views: Vec<(String, String)>,
    /// The nodes in the URL that report that they are in no cluster.
    pub(crate) loners: Vec<String>,
}

/// One server of several.
pub(crate) struct Part {
    pub(crate) server: Arc<dyn Transport>,
    pub(crate) location: String,
    /// Sorted. It is empty for a server that may soon get slots.
    pub(crate) slots: Vec<u16>,
}
