//! Represents calls of a store as values, for layers that stand before a store.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Capability, Convert,
    ConvertRequest, ForceRelease, ForceReleaseRequest, Leave, LeaveRequest, ListRequest, Listener,
    Listing, LockInfo, LockLog, RawRequest, Release, ReleaseRequest, Renew, RenewRequest, SetLimit,
    SetLimitRequest, Store,
};
use crate::doctor::Finding;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::token::{ClientId, Token};

/// A store that stands before another, or in the place of one, and treats all calls alike: it
/// counts them, names them, loses them. Every layer is a [`Store`].
///
/// A layer sees each call in one function, so a method that `Store` gets later passes through it as
/// well. A store that changes only some requests implements `Store` itself.
pub trait StoreLayer: Debug + Send + Sync + 'static {
    /// Carries a call out, as [`Call::send`] does at another store, or answers it with an
    /// [error](Call::fail).
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        within: Duration,
    ) -> BoxFuture<'a, C::Answer>;

    /// Wraps the channel that a client opened through this layer.
    fn listener(&self, inner: Box<dyn Listener>) -> Box<dyn Listener> {
        inner
    }

    /// See [`Store::log`].
    fn log(&self) -> Option<Arc<dyn LockLog>>;

    /// See [`Store::token`]. A layer decides where requests go, so their tokens have to suit any
    /// store; the default is [`Token::generate`]. A simulation draws them from its seed.
    ///
    /// # Errors
    ///
    /// As [`Token::generate`].
    fn token(&self) -> Result<Token> {
        Token::generate()
    }

    /// See [`Store::capability`].
    fn capability(&self) -> Capability;

    /// See [`Store::location`].
    fn location(&self) -> String;
}

/// A call of a [`Store`]: a request, with the type of its answer.
pub trait Call: ToOwned<Owned: Send + Sync + 'static> + Send + Sync + 'static {
    /// What the method returns.
    type Answer: Send + 'static;

    /// The method.
    const METHOD: Method;

    /// Makes the call.
    fn send<'a>(&'a self, store: &'a dyn Store, within: Duration) -> BoxFuture<'a, Self::Answer>;

    /// The answer when the whole call fails with this error.
    fn fail(&self, error: Error) -> Self::Answer;

    /// The locks that it names, each with its token.
    fn targets(&self) -> Vec<(&Key, Option<&Token>)>;
}

/// A method of the [`Store`] trait.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Method {
    /// [`Store::acquire`].
    Acquire,
    /// [`Store::acquire_all`].
    AcquireAll,
    /// [`Store::convert`].
    Convert,
    /// [`Store::set_limit`].
    SetLimit,
    /// [`Store::ask`].
    Ask,
    /// [`Store::renew`].
    Renew,
    /// [`Store::release`].
    Release,
    /// [`Store::leave`].
    Leave,
    /// [`Store::inspect`].
    Inspect,
    /// [`Store::list`].
    List,
    /// [`Store::force_release`].
    ForceRelease,
    /// [`Store::listen`].
    Listen,
    /// [`Store::remembers_for`].
    RemembersFor,
    /// [`Store::examine`].
    Examine,
    /// [`Store::raw`].
    Raw,
}

impl Method {
    /// Whether it gives something back, which a store does however late the request comes.
    #[must_use]
    pub const fn gives_back(self) -> bool {
        matches!(self, Self::Leave | Self::Release | Self::ForceRelease)
    }

    /// Its name in errors; see [`Error::during`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire | Self::AcquireAll => "acquire",
            Self::Convert => "convert",
            Self::SetLimit => "set-limit",
            Self::Ask => "ask",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Leave => "leave",
            Self::Inspect => "inspect",
            Self::List => "list",
            Self::ForceRelease => "force-release",
            Self::Listen => "listen",
            Self::RemembersFor => "remembers-for",
            Self::Examine => "examine",
            Self::Raw => "show",
        }
    }
}

/// [`Store::remembers_for`], as a call.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the method takes nothing")]
pub struct RemembersFor;

/// [`Store::examine`], as a call.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the method takes nothing")]
pub struct Examine;

/// The calls that fail with one error.
macro_rules! calls {
    ($($request:ty: $method:ident, $send:ident -> $answer:ty, $this:ident => $targets:expr;)+) => {
        $(impl Call for $request {
            type Answer = Result<$answer>;
            const METHOD: Method = Method::$method;

            fn send<'a>(
                &'a self,
                store: &'a dyn Store,
                within: Duration,
            ) -> BoxFuture<'a, Self::Answer> {
                store.$send(self, within)
            }

            fn fail(&self, error: Error) -> Self::Answer {
                Err(error)
            }

            fn targets(&self) -> Vec<(&Key, Option<&Token>)> {
                let $this = self;
                $targets
            }
        })+
    };
}

calls! {
    AcquireRequest: Acquire, acquire -> Acquire, it => vec![(&it.key, Some(&it.token))];
    [AcquireRequest]: AcquireAll, acquire_all -> AcquireAll, all => {
        all.iter().map(|it| (&it.key, Some(&it.token))).collect()
    };
    ReleaseRequest: Release, release -> Release, it => vec![(&it.key, Some(&it.token))];
    LeaveRequest: Leave, leave -> Leave, it => vec![(&it.key, Some(&it.token))];
    ConvertRequest: Convert, convert -> Convert, it => vec![(&it.key, Some(&it.token))];
    SetLimitRequest: SetLimit, set_limit -> SetLimit, it => vec![(&it.key, None)];
    AskRequest: Ask, ask -> Ask, it => vec![(&it.key, None)];
    ForceReleaseRequest: ForceRelease, force_release -> ForceRelease, it => vec![(&it.key, None)];
    Key: Inspect, inspect -> Option<LockInfo>, key => vec![(key, None)];
    ListRequest: List, list -> Listing, _it => Vec::new();
    RawRequest: Raw, raw -> Vec<String>, it => vec![(&it.key, None)];
}

impl Call for [RenewRequest] {
    type Answer = Vec<Result<Renew>>;
    const METHOD: Method = Method::Renew;

    fn send<'a>(&'a self, store: &'a dyn Store, within: Duration) -> BoxFuture<'a, Self::Answer> {
        store.renew(self, within)
    }

    fn fail(&self, error: Error) -> Self::Answer {
        self.iter().map(|request| Err(error.clone().on_key(&request.key))).collect()
    }

    fn targets(&self) -> Vec<(&Key, Option<&Token>)> {
        self.iter().map(|it| (&it.key, Some(&it.token))).collect()
    }
}

macro_rules! calls_about_no_lock {
    ($($request:ty: $method:ident -> $answer:ty,
       ($this:ident, $store:ident, $within:ident) => $send:expr;)+) => {
        $(impl Call for $request {
            type Answer = Result<$answer>;
            const METHOD: Method = Method::$method;

            fn send<'a>(
                &'a self,
                $store: &'a dyn Store,
                $within: Duration,
            ) -> BoxFuture<'a, Self::Answer> {
                let $this = self;
                $send
            }

            fn fail(&self, error: Error) -> Self::Answer {
                Err(error)
            }

            fn targets(&self) -> Vec<(&Key, Option<&Token>)> {
                Vec::new()
            }
        })+
    };
}

calls_about_no_lock! {
    ClientId: Listen -> Box<dyn Listener>, (it, store, within) => store.listen(*it, within);
    RemembersFor: RemembersFor -> Option<Duration>,
        (_it, store, within) => store.remembers_for(within);
    Examine: Examine -> Vec<Finding>, (_it, store, within) => store.examine(within);
}

#[deny(clippy::missing_trait_methods)]
impl<L: StoreLayer> Store for L {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        self.carry(request, within)
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        self.carry(requests, within)
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        self.carry(request, within)
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        self.carry(request, within)
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [AcquireRequest],
        within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        self.carry(requests, within)
    }

    fn convert<'a>(
        &'a self,
        request: &'a ConvertRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Convert>> {
        self.carry(request, within)
    }

    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        self.carry(request, within)
    }

    fn ask<'a>(&'a self, request: &'a AskRequest, within: Duration) -> BoxFuture<'a, Result<Ask>> {
        self.carry(request, within)
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        self.carry(key, within)
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Listing>> {
        self.carry(request, within)
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        self.carry(request, within)
    }

    fn listen<'a>(
        &'a self,
        client: ClientId,
        within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        Box::pin(async move { Ok(self.listener(self.carry(&client, within).await?)) })
    }

    fn remembers_for(&self, within: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        self.carry(&RemembersFor, within)
    }

    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        self.carry(&Examine, within)
    }

    fn raw<'a>(
        &'a self,
        request: &'a RawRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>>> {
        self.carry(request, within)
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        StoreLayer::log(self)
    }

    fn token(&self) -> Result<Token> {
        StoreLayer::token(self)
    }

    fn capability(&self) -> Capability {
        StoreLayer::capability(self)
    }

    fn location(&self) -> String {
        StoreLayer::location(self)
    }
}
