//! Chooses among the addresses of a name.
//!
//! A name may have several addresses. If they lead to different servers, each of those grants its
//! own locks. So an address is used only if its server is known to have the locks.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Reason;
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::classify::{Stage, Verdict, io_error};
use crate::topology::address::Endpoint;

/// What an address turned out to be.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    /// A primary, and its run id, if this user may read it.
    Primary(Option<String>),
    /// A server without its own locks.
    Other(Verdict),
    /// No answer.
    Silent(Verdict),
}

/// An address of a name, with the result of asking it.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) at: SocketAddr,
    pub(crate) said: Said,
}

impl Heard {
    /// Whether it is a primary whose run id this user may not read.
    pub(crate) fn is_nameless(&self) -> bool {
        self.primary() == Some(None)
    }

    pub(crate) const fn is_silent(&self) -> bool {
        matches!(self.said, Said::Silent(_))
    }

    /// Its run id, if it is a primary.
    fn primary(&self) -> Option<Option<&str>> {
        match &self.said {
            Said::Primary(id) => Some(id.as_deref()),
            Said::Other(_) | Said::Silent(_) => None,
        }
    }
}

/// The address at which locks were acquired.
#[derive(Clone, Debug)]
struct Known {
    of: Endpoint,
    at: SocketAddr,
    id: Option<String>,
    /// The name's addresses at the last comparison.
    listed: Vec<SocketAddr>,
    /// Whether the last attempt to connect to it failed.
    doubted: bool,
}

/// The addresses of one server's name.
#[derive(Default)]
pub(crate) struct Addresses {
    known: Mutex<Option<Known>>,
    #[cfg(test)]
    pub(crate) resolved: Mutex<Vec<SocketAddr>>,
}

impl fmt::Debug for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Addresses").finish_non_exhaustive()
    }
}

impl Addresses {
    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of a server's name, in order of preference; empty for a socket.
    pub(crate) async fn listed(&self, of: &Endpoint) -> Result<Vec<SocketAddr>, Verdict> {
        let Endpoint::Tcp { host, port, .. } = of else { return Ok(Vec::new()) };
        #[cfg(test)]
        {
            let resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if !resolved.is_empty() {
                return Ok(resolved);
            }
        }
        let found = lookup_host((host.as_str(), *port)).await;
        let mut listed = Vec::new();
        let unknown = |error| match io_error(&error, Stage::Connecting) {
            verdict if verdict.reason != Some(Reason::Unreachable) => verdict,
            _ => Verdict::unconnected(format!(
                "host {host} not found ({error}); check the name in the store's URL"
            )),
        };
        for at in found.map_err(unknown)? {
            if !listed.contains(&at) {
                listed.push(at);
            }
        }
        Ok(listed)
    }

    /// The address to connect to; `None` if the endpoint is enough. `ask` finds out what an address
    /// is.
    pub(crate) async fn choose<F>(
        &self,
        of: &Endpoint,
        grace: Duration,
        ask: impl Fn(SocketAddr) -> F,
    ) -> Result<Option<SocketAddr>, Verdict>
    where
        F: Future<Output = Said> + Send + 'static,
    {
        let listed = self.listed(of).await?;
        let known = self.known().clone().filter(|known| known.of == *of);
        let mut all = listed.clone();
        if let Some(known) = &known
            && !all.contains(&known.at)
        {
            all.push(known.at);
        }
        let as_before = |known: &Known| !known.doubted && known.listed == sorted(&listed);
        let (at, id) = match (&*all, &known) {
            ([], _) => return Ok(None),
            ([only], _) => (*only, None),
            (_, Some(known)) if as_before(known) => return Ok(Some(known.at)),
            _ => {
                let heard = hear(&all, grace, ask).await;
                let known = known.as_ref().map(|known| (known.at, known.id.as_deref()));
                let chosen = choose(of, &heard, known, &listed)?;
                (chosen.at, chosen.primary().flatten().map(str::to_owned))
            }
        };
        let known = Known { of: of.clone(), at, id, listed: sorted(&listed), doubted: false };
        *self.known() = Some(known);
        Ok(Some(at))
    }

    /// Records how an attempt to connect to the chosen address ended.
    pub(crate) fn settle(&self, of: &Endpoint, connected: bool) {
        if let Some(known) = self.known().as_mut().filter(|known| known.of == *of) {
            known.doubted = !connected;
        }
    }
}

fn sorted(listed: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut listed = listed.to_vec();
    listed.sort_unstable();
    listed
}

/// Asks all addresses at once. After the first primary's answer, the others get a little more time.
/// Keeps the order.
pub(crate) async fn hear<F>(
    all: &[SocketAddr],
    grace: Duration,
    ask: impl Fn(SocketAddr) -> F,
) -> Vec<Heard>
where
    F: Future<Output = Said> + Send + 'static,
{
    let mut asking = JoinSet::new();
    for at in all {
        let (at, said) = (*at, ask(*at));
        asking.spawn(async move { Heard { at, said: said.await } });
    }
    let mut heard: Vec<Heard> = Vec::with_capacity(all.len());
    let mut until: Option<Instant> = None;
    loop {
        let next = match until {
            Some(until) => timeout_at(until, asking.join_next()).await.unwrap_or(None),
            None => asking.join_next().await,
        };
        let Some(answer) = next else { break };
        heard.extend(answer);
        if until.is_none() && heard.last().is_some_and(|one| one.primary().is_some()) {
            until = Some(Instant::now() + grace);
        }
    }
    for at in all {
        if heard.iter().all(|one| one.at != *at) {
            let silent = Verdict::unconnected(format!("{at} does not answer"));
            heard.push(Heard { at: *at, said: Said::Silent(silent) });
        }
    }
    let place = |one: &Heard| all.iter().position(|at| *at == one.at);
    heard.sort_by_key(place);
    heard
}

/// Two primaries that are different servers, or may be.
pub(crate) fn apart(heard: &[Heard]) -> Option<(&Heard, &Heard)> {
    let primaries: Vec<_> = heard.iter().filter(|one| one.primary().is_some()).collect();
    let differ = |one: &Heard, other: &Heard| {
        one.primary().flatten().is_none() || one.primary() != other.primary()
    };
    let (first, others) = primaries.split_first()?;
    let other = others.iter().find(|other| differ(first, other))?;
    Some((first, other))
}

/// The address with the locks of this store, by the answers and the known address.
fn choose<'a>(
    of: &Endpoint,
    heard: &'a [Heard],
    known: Option<(SocketAddr, Option<&str>)>,
    listed: &[SocketAddr],
) -> Result<&'a Heard, Verdict> {
    let refused = |why: String| match known {
        // This may be corrected while leases still run.
        Some(_) => Err(Verdict::nobody_yet(why)),
        None => Err(Verdict::misconfigured(why)),
    };
    let stays = heard.iter().find(|one| {
        let is_known = known.is_some_and(|(before, _)| before == one.at);
        is_known && one.primary().is_some() && listed.contains(&one.at)
    });
    if let Some((one, other)) = apart(heard) {
        let (one, other) = (one.at, other.at);
        let sure = !heard.iter().any(Heard::is_nameless);
        if let Some(known) = stays.filter(|_| !sure) {
            return Ok(known);
        }
        let why = if sure {
            format!(
                "{of} has several addresses, and {one} and {other} are different servers with \
                 their own locks; write one address into the URL"
            )
        } else {
            format!(
                "{of} has several addresses, and {one} and {other} may be different servers. Allow \
                 this user INFO, or write one address into the URL"
            )
        };
        return refused(why);
    }
    let primaries = || heard.iter().filter(|one| one.primary().is_some());
    let Some(first) =
        primaries().find(|one| listed.contains(&one.at)).or_else(|| primaries().next())
    else {
        let failure = |one: &Heard| match &one.said {
            Said::Other(verdict) => Some((false, verdict.clone())),
            Said::Silent(verdict) => Some((true, verdict.clone())),
            Said::Primary(_) => None,
        };
        // A server's answer explains more than its silence.
        let telling = heard.iter().filter_map(failure).min_by_key(|(silent, _)| *silent);
        let nobody =
            || Verdict::unconnected(format!("no address of {of} answers; check the server"));
        return Err(telling.map_or_else(nobody, |(_, verdict)| verdict));
    };
    let Some((before, id)) = known else { return Ok(first) };
    if let Some(known) = stays {
        return Ok(known);
    }
    let then = heard.iter().find(|one| one.at == before);
    let is_same = id.is_some() && first.primary() == Some(id);
    let is_gone = !listed.contains(&before);
    let gave_way = then.is_some_and(|one| matches!(one.said, Said::Other(_)));
    if is_same || is_gone || gave_way {
        return Ok(first);
    }
    let first = first.at;
    refused(format!(
        "{of} has several addresses: {before}, where the locks are, does not answer, and {first} \
         may be another server"
    ))
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
