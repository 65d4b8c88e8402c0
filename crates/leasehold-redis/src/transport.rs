//! What carries requests to a server or a cluster, over whichever connections.

use std::fmt::Debug;
use std::sync::Arc;

use leasehold_core::BoxFuture;

use crate::addresses::Heard;
use crate::call::Request;
use crate::classify::Verdict;
use crate::request::{Answer, Deadline};
use crate::sentinel::Said;

/// Carries requests to a server. Sends each once, and again only to another server when the first
/// said that it had not carried it out.
pub(crate) trait Transport: Debug + Send + Sync + 'static {
    /// One request, one answer; an error that the server answers with is judged.
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

    /// One request on a connection that is there already; `None`, and nothing is sent, when there
    /// is none. The request keeps its place among others from the first poll on.
    fn at_once<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _deadline: Deadline,
    ) -> Option<BoxFuture<'a, Result<Answer, Verdict>>> {
        None
    }

    /// Whether it has [connections](Self::at_once) over which all locks are reached.
    fn combines(&self) -> bool {
        false
    }

    /// Whether locks are spread over servers, so that no script can be about several.
    fn is_spread(&self) -> bool {
        false
    }

    /// Whether another server may take the place of one, and may have forgotten what that one kept.
    fn fails_over(&self) -> bool {
        false
    }

    /// The servers that together keep all locks, where they are spread.
    fn parts(&self, _deadline: Deadline) -> BoxFuture<'_, Result<Option<Parts>, Verdict>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// What the sentinels say that were named, where there are some.
    fn sentinels(&self) -> BoxFuture<'_, Option<Vec<Said>>> {
        Box::pin(std::future::ready(None))
    }

    /// What is at each address of the server that was named, where its name has several.
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
    /// What each server that was named answers to `CLUSTER NODES`, if it does.
    pub(crate) views: Vec<(String, String)>,
    /// Those that were named and say that they are no node of any cluster.
    pub(crate) loners: Vec<String>,
}

/// One server of several.
pub(crate) struct Part {
    pub(crate) server: Arc<dyn Transport>,
    pub(crate) location: String,
    /// In order; none of a server that may be about to get some.
    pub(crate) slots: Vec<u16>,
}
