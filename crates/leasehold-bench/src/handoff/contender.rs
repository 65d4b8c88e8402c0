//! The ways of waiting that the hand-off benchmark compares.

use std::time::Duration;

use anyhow::{Context as _, bail};
use leasehold::retry::Linear;
use leasehold::{Client, Guard, Mutex, Release};
use tokio::task::JoinSet;

use crate::bare::{BlockingPop, PublishToAll};
use crate::fifo::{BareFifo, Kept, Message, Wires};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Variant {
    /// Each waiter has its own client, as processes do.
    Leasehold,
    /// All waiters share one client, which hands off at most 16 times in a row inside itself.
    OneClient,
    /// As `OneClient`, half of them in each of two clients.
    TwoClients,
    /// A list in the server, and a release that notifies its head; the bare minimum.
    BareFifo,
    /// As `BareFifo`, with records of leasehold's size instead of a key and a list.
    LineFloor,
    /// As `LineFloor`, with separate connections for messages and requests.
    LineFloorApart,
    /// As `LineFloorApart`, with connections that another thread drives, as leasehold's are.
    LineFloorAcross,
    /// A message that goes round, without a lock.
    Message,
    /// Delete and publish; all waiters try again.
    PublishToAll,
    /// Delete and push; one waiter pops and tries again. Newcomers try before they wait.
    BlockingPop,
    /// As `BlockingPop`, but newcomers also wait for an element, so that all are served in turn.
    BlockingPopInTurn,
    /// Leasehold clients that poll every 2 ms.
    PollTight,
    /// Leasehold clients that poll every 50 ms.
    PollSlow,
}

impl Variant {
    pub(crate) const ALL: [Self; 13] = [
        Self::Leasehold,
        Self::OneClient,
        Self::TwoClients,
        Self::BareFifo,
        Self::LineFloor,
        Self::LineFloorApart,
        Self::LineFloorAcross,
        Self::Message,
        Self::PublishToAll,
        Self::BlockingPop,
        Self::BlockingPopInTurn,
        Self::PollTight,
        Self::PollSlow,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Leasehold => "leasehold",
            Self::OneClient => "leasehold-one-client",
            Self::TwoClients => "leasehold-two-clients",
            Self::BareFifo => "bare-fifo",
            Self::LineFloor => "line-floor",
            Self::LineFloorApart => "line-floor-apart",
            Self::LineFloorAcross => "line-floor-across",
            Self::Message => "message",
            Self::PublishToAll => "publish-to-all",
            Self::BlockingPop => "blocking-pop",
            Self::BlockingPopInTurn => "blocking-pop-in-turn",
            Self::PollTight => "poll-2ms",
            Self::PollSlow => "poll-50ms",
        }
    }

    /// Whether this is one of leasehold's default ways to wait.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Leasehold | Self::OneClient | Self::TwoClients)
    }

    /// Whether each contender is served before another is served twice.
    pub(crate) const fn serves_in_turn(self) -> bool {
        matches!(
            self,
            Self::Leasehold
                | Self::BareFifo
                | Self::LineFloor
                | Self::LineFloorApart
                | Self::LineFloorAcross
                | Self::Message
                | Self::BlockingPopInTurn
        )
    }

    /// With more waiters, the variant only loads the server.
    pub(crate) const fn max_waiters(self) -> usize {
        match self {
            Self::PollTight | Self::PollSlow => 100,
            _ => usize::MAX,
        }
    }

    /// The requests that its clients send, without the calls inside scripts.
    pub(crate) const fn requests(self) -> &'static [&'static str] {
        match self {
            Self::Message => &["publish"],
            Self::PublishToAll => &["set", "evalsha", "eval"],
            Self::BlockingPop | Self::BlockingPopInTurn => &["set", "blpop", "evalsha", "eval"],
            _ => &["evalsha", "eval"],
        }
    }
}

/// A contender of one variant.
#[derive(Debug)]
pub(crate) enum Contender {
    Library(Mutex),
    BareFifo(Box<BareFifo>),
    Message(Box<Message>),
    PublishToAll(Box<PublishToAll>),
    BlockingPop(Box<BlockingPop>),
}

#[derive(Debug)]
pub(crate) enum Held {
    Guard(Guard),
    Token(String),
    Message,
}

impl Contender {
    pub(crate) async fn lock(&mut self) -> anyhow::Result<Held> {
        match self {
            Self::Library(mutex) => Ok(Held::Guard(mutex.lock().await?)),
            Self::BareFifo(waiter) => Ok(Held::Token(waiter.lock().await?)),
            Self::Message(waiter) => {
                waiter.lock().await?;
                Ok(Held::Message)
            }
            Self::PublishToAll(waiter) => Ok(Held::Token(waiter.lock().await?)),
            Self::BlockingPop(waiter) => Ok(Held::Token(waiter.lock().await?)),
        }
    }

    /// Releases the lock; returns whether it was held to the end.
    pub(crate) async fn release(&mut self, held: Held) -> anyhow::Result<bool> {
        match (self, held) {
            (Self::Library(_), Held::Guard(guard)) => {
                Ok(guard.release_outcome().await? == Release::Released)
            }
            (Self::BareFifo(waiter), Held::Token(token)) => waiter.release(&token).await,
            (Self::Message(waiter), Held::Message) => waiter.release().await,
            (Self::PublishToAll(waiter), Held::Token(token)) => waiter.release(&token).await,
            (Self::BlockingPop(waiter), Held::Token(token)) => waiter.release(&token).await,
            _ => bail!("the lock was taken in another way than it is released"),
        }
    }
}

/// All contenders of a turn, connected, and the clients to close after it.
pub(crate) async fn connect(
    url: &str,
    variant: Variant,
    waiters: usize,
    key: &str,
) -> anyhow::Result<(Vec<Contender>, Vec<Client>)> {
    let clients_wanted = match variant {
        Variant::OneClient => 1,
        Variant::TwoClients => 2,
        Variant::BareFifo
        | Variant::LineFloor
        | Variant::LineFloorApart
        | Variant::LineFloorAcross
        | Variant::Message
        | Variant::PublishToAll
        | Variant::BlockingPop
        | Variant::BlockingPopInTurn => 0,
        Variant::Leasehold | Variant::PollTight | Variant::PollSlow => waiters,
    };
    let mut clients = Vec::new();
    let mut contenders = Vec::new();
    // Limited, so that the server's queue of new connections does not overflow.
    const AT_ONCE: usize = 64;
    while clients.len() < clients_wanted {
        let mut connecting = JoinSet::new();
        for _ in 0..AT_ONCE.min(clients_wanted - clients.len()) {
            let url = url.to_owned();
            connecting.spawn(async move {
                // A busy machine must not cause errors here.
                Client::builder().call_timeout(Duration::from_secs(20)).connect(url).await
            });
        }
        while let Some(client) = connecting.join_next().await {
            clients.push(client??);
        }
    }
    for number in 0..waiters {
        let mutex = || {
            let client = clients.get(number % clients_wanted).context("all are connected")?;
            anyhow::Ok(client.mutex(key))
        };
        contenders.push(match variant {
            Variant::Leasehold | Variant::OneClient | Variant::TwoClients => {
                Contender::Library(mutex()?)
            }
            Variant::PollTight => {
                Contender::Library(mutex()?.retry(Linear::new(Duration::from_millis(2))))
            }
            Variant::PollSlow => {
                Contender::Library(mutex()?.retry(Linear::new(Duration::from_millis(50))))
            }
            Variant::BareFifo
            | Variant::LineFloor
            | Variant::LineFloorApart
            | Variant::LineFloorAcross => {
                let kept = if variant == Variant::BareFifo { Kept::List } else { Kept::Record };
                let shared = matches!(variant, Variant::BareFifo | Variant::LineFloor);
                let wires = if shared { Wires::Shared } else { Wires::Apart };
                let (url, key) = (url.to_owned(), key.to_owned());
                let connecting =
                    async move { BareFifo::connect(&url, &key, number, kept, wires).await };
                let waiter = if variant == Variant::LineFloorAcross {
                    leasehold::driver()?.spawn(connecting).await??
                } else {
                    connecting.await?
                };
                Contender::BareFifo(Box::new(waiter))
            }
            Variant::Message => {
                Contender::Message(Box::new(Message::connect(url, key, number, waiters).await?))
            }
            Variant::PublishToAll => {
                Contender::PublishToAll(Box::new(PublishToAll::connect(url, key).await?))
            }
            Variant::BlockingPop | Variant::BlockingPopInTurn => {
                let in_turn = variant == Variant::BlockingPopInTurn;
                Contender::BlockingPop(Box::new(BlockingPop::connect(url, key, in_turn).await?))
            }
        });
    }
    Ok((contenders, clients))
}
