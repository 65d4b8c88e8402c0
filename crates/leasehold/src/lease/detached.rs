//! A lease without a guard: a value that can be written down and adopted elsewhere.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{
    Cooldown, Effect, Error, ErrorKind, Fence, FenceBlock, Key, Metadata, Mode, Moment,
    ReleaseRequest, Renew, RenewRequest, Result, Token, Ttl,
};

use crate::audit::LockEventKind;
use crate::lease::handle::{LeaseHandle, Proof};
use crate::lease::held_lease::HeldLease;
use crate::lease::held_lease::late;
use crate::lease::outcome::{Release, end_in};
use crate::lease::release;
use crate::settings::{Named, Settings};
use crate::shared::Inner;

/// A lease without a guard. It is not renewed: it runs until its ttl ends. The owner of this value
/// can renew, adopt or release it.
///
/// [Adopting](crate::Client::adopt) it spends it: the lease has another secret from then on.
///
/// [`to_secret_text`](Self::to_secret_text) writes it as one line of text and
/// [`from_str`](str::parse) reads it back. **The text contains the lease's secret**: keep it in a
/// file that only its owner can read.
#[derive(Clone, Eq, PartialEq)]
pub struct DetachedLease {
    proof: Proof,
    ttl: Ttl,
    manner: Manner,
}

/// How the lease was held, for the next guard of it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Manner {
    mode: Mode,
    renew: bool,
    grace: Option<Duration>,
    metadata: Metadata,
}

/// Marks the text form; a new form gets a new mark.
const MARK: &str = "leasehold-lease-1";

impl DetachedLease {
    pub(crate) fn of(handle: &LeaseHandle) -> Self {
        let settings = &handle.settings;
        let manner = Manner {
            mode: settings.mode,
            renew: settings.renew,
            grace: settings.stop_grace,
            metadata: settings.metadata.clone(),
        };
        Self { proof: handle.proof(), ttl: handle.state().ttl(), manner }
    }

    /// A held lease as a value, with which another process can end it if this one is killed. While
    /// the guard exists, only the guard may use the lease. Sends no request.
    #[doc(hidden)]
    #[must_use]
    pub fn copy_of(lease: &HeldLease) -> Self {
        Self::of(lease.handle())
    }

    /// The settings of the guard that adopts it.
    pub(crate) fn settings(&self, client: &Inner) -> Named {
        let mut settings = Settings::clone(&client.settings);
        settings.mode = self.manner.mode;
        settings.ttl = self.ttl;
        settings.renew = self.manner.renew;
        settings.stop_grace = self.manner.grace;
        settings.metadata = self.manner.metadata.clone();
        settings.handed_on = false;
        Named { key: self.proof.key.clone(), settings: Arc::new(settings) }
    }

    /// The lock's name.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.proof.key
    }

    /// The lease's fencing token.
    #[must_use]
    pub const fn fence(&self) -> Fence {
        self.proof.fence
    }

    /// The length for which it was last renewed.
    #[must_use]
    pub const fn ttl(&self) -> Ttl {
        self.ttl
    }

    pub(crate) const fn fences(&self) -> FenceBlock {
        self.proof.fences
    }

    pub(crate) fn with_ttl(&self, ttl: Ttl) -> Self {
        Self { ttl, ..self.clone() }
    }

    /// Renews it with another token, which proves it from now on. Returns the new proof, and when
    /// the request was sent.
    pub(crate) async fn take_over(&self, inner: &Inner) -> Result<(Proof, Moment)> {
        let explain = |error| inner.explain(error, "adopt").on_key(self.key());
        let proof = Proof { token: inner.store.token().map_err(explain)?, ..self.proof.clone() };
        let renew = || self.renewed(inner, self.ttl, Some(proof.token));
        let mut answer = renew().await;
        if answer.as_ref().is_err_and(|error| error.effect() == Effect::Unknown) {
            // The store answers a repeated request for the same successor as it did, or would have
            // done.
            answer = renew().await.map_err(|error| match error.kind() {
                ErrorKind::Late | ErrorKind::Lost => error,
                _ => error.with_effect(Effect::Unknown),
            });
        }
        answer.map(|sent_at| (proof, sent_at)).map_err(explain)
    }

    /// Renews it, and returns when the request was sent.
    pub(crate) async fn renewed(
        &self,
        inner: &Inner,
        ttl: Ttl,
        successor: Option<Token>,
    ) -> Result<Moment> {
        let sent_at = inner.clock.now();
        let Proof { key, token, fences, .. } = &self.proof;
        let mut request = RenewRequest::new(key.clone(), *token, *fences, ttl);
        request.shorten = true;
        request.successor = successor;
        let (store, limit) = inner.to_call()?;
        let answer = store.renew(std::slice::from_ref(&request), limit).await.pop();
        Err(match answer {
            Some(Ok(Renew::Renewed | Renew::Asked)) => return Ok(sent_at),
            Some(Ok(Renew::Late)) => late(None),
            Some(Ok(_)) => Error::new(
                ErrorKind::Lost,
                "the lease is lost: it expired, was force-released, or was adopted before; stop \
                 the work under it",
            ),
            Some(Err(error)) => error,
            None => Error::new(ErrorKind::Protocol, "no answer to a renewal"),
        })
    }

    /// Ends it, and starts `cooldown` if there is one.
    pub(crate) async fn release(&self, client: &Inner, cooldown: Cooldown) -> Result<Release> {
        let mut request =
            ReleaseRequest::new(self.key().clone(), self.proof.token, self.proof.fences);
        request.cooldown = cooldown;
        let (store, limit) = client.to_call()?;
        let answer = end_in(store, &request, limit).await;
        release::tell(self.key(), self.fence(), &answer);
        let answer = answer.map_err(|error| client.explain(error, "release").on_key(self.key()))?;
        // Another process may have renewed it since this value was made.
        let outcome = Release::of(&answer, None);
        let what = LockEventKind::Released { outcome, cooldown: cooldown.closes_for() };
        client.audience.tell(self.key(), self.fence(), None, None, what);
        Ok(outcome)
    }

    /// The lease as one line of text. Secret.
    ///
    /// The parts, with a space between them: mark, token, its fence, the grant's first fence and
    /// their number, ttl in ms, mode, `renew` or `fixed`, grace, metadata, name. The mode is `x`,
    /// `s`, or `p3/10` for 3 of 10 permits. The grace for stopping is in ms (`-` if none was set),
    /// the metadata in hex (`-` if empty).
    #[must_use]
    pub fn to_secret_text(&self) -> String {
        let Self { proof: Proof { key, token, fences, fence }, ttl, manner } = self;
        let Manner { mode, renew, grace, metadata } = manner;
        let mode = match mode {
            Mode::Permits { count, limit } => format!("p{count}/{limit}"),
            Mode::Shared => "s".to_owned(),
            _ => "x".to_owned(),
        };
        let renew = if *renew { "renew" } else { "fixed" };
        let grace = grace.map_or_else(|| "-".to_owned(), |grace| grace.as_millis().to_string());
        let (token, first, count) = (token.to_hex(), fences.first(), fences.count());
        let (ttl, metadata, key) = (ttl.as_millis(), to_hex(metadata.as_str()), key.as_str());
        format!(
            "{MARK} {token} {fence} {first} {count} {ttl} {mode} {renew} {grace} {metadata} {key}"
        )
    }
}

fn to_hex(text: &str) -> String {
    if text.is_empty() {
        return "-".to_owned();
    }
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Option<String> {
    if hex == "-" {
        return Some(String::new());
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes = hex.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some((digit(*high)? << 4) | digit(*low)?),
        _ => None,
    });
    String::from_utf8(bytes.collect::<Option<Vec<u8>>>()?).ok()
}

fn mode_from(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => {
            let (count, limit) = text.strip_prefix('p')?.split_once('/')?;
            let count: NonZeroU32 = count.parse().ok()?;
            let limit: NonZeroU32 = limit.parse().ok()?;
            (count <= limit).then_some(Mode::Permits { count, limit })
        }
    }
}

impl FromStr for DetachedLease {
    type Err = Error;

    /// Reads what [`to_secret_text`](Self::to_secret_text) wrote.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for anything else; the message does not repeat the text.
    fn from_str(text: &str) -> Result<Self> {
        let refuse = || {
            Error::new(
                ErrorKind::Config,
                "this is not a lease; give what `acquire` wrote, \
                                           unchanged",
            )
        };
        let text = text.strip_suffix('\n').unwrap_or(text);
        let mut parts = text.splitn(11, ' ');
        let mut next = || parts.next().ok_or_else(refuse);
        if next()? != MARK {
            return Err(refuse());
        }
        let token = Token::from_hex(next()?).map_err(|_| refuse())?;
        let mut next_fence = || {
            let value = next()?.parse().map_err(|_| refuse())?;
            Fence::from_value(value).map_err(|_| refuse())
        };
        let (fence, first) = (next_fence()?, next_fence()?);
        let count = next()?.parse().map_err(|_| refuse())?;
        let fences = FenceBlock::new(first, count);
        if !fences.contains(fence) {
            return Err(refuse());
        }
        let ttl = next()?.parse().map_err(|_| refuse())?;
        let ttl = Ttl::new(Duration::from_millis(ttl)).map_err(|_| refuse())?;
        let mode = mode_from(next()?).ok_or_else(refuse)?;
        let renew = match next()? {
            "renew" => true,
            "fixed" => false,
            _ => return Err(refuse()),
        };
        let grace = match next()? {
            "-" => None,
            grace => Some(Duration::from_millis(grace.parse().map_err(|_| refuse())?)),
        };
        let metadata = Metadata::new(from_hex(next()?).ok_or_else(refuse)?)?;
        let key = Key::new(next()?)?;
        let manner = Manner { mode, renew, grace, metadata };
        Ok(Self { proof: Proof { key, token, fences, fence }, ttl, manner })
    }
}

impl fmt::Debug for DetachedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { proof: Proof { key, token, fences: _, fence }, ttl, manner } = self;
        f.debug_struct("DetachedLease")
            .field("key", key)
            .field("token", token)
            .field("fence", fence)
            .field("ttl", ttl)
            .field("mode", &manner.mode)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_read_back_and_nothing_else_is() {
        let lease = DetachedLease {
            proof: Proof {
                key: Key::new("a name with spaces").unwrap(),
                token: Token::from_bytes([7; 16]),
                fences: FenceBlock::new(Fence::new(1, 9).unwrap(), 64),
                fence: Fence::new(1, 11).unwrap(),
            },
            ttl: Ttl::new(Duration::from_secs(5)).unwrap(),
            manner: Manner {
                mode: Mode::Permits {
                    count: NonZeroU32::MIN,
                    limit: NonZeroU32::MIN.saturating_add(2),
                },
                renew: false,
                grace: Some(Duration::from_millis(70)),
                metadata: Metadata::new("two\nlines, é").unwrap(),
            },
        };
        let text = lease.to_secret_text();
        assert_eq!(text.lines().count(), 1);
        assert_eq!(text.parse::<DetachedLease>().unwrap(), lease);
        assert_eq!(format!("{text}\n").parse::<DetachedLease>().unwrap(), lease);
        assert!(!format!("{lease:?}").contains(&lease.proof.token.to_hex()));
        let cut = &text[..text.len() - 19];
        let other = text.replace(MARK, "leasehold-lease-2");
        for bad in ["", cut, other.as_str()] {
            let error = bad.parse::<DetachedLease>().unwrap_err();
            assert!(!error.to_string().contains("0707"), "{error}");
        }
    }
}
