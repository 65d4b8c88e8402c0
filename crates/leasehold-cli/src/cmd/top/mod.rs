//! `leasehold top`: watch the locks in use in a terminal.
//!
//! The store is listed now and then. Between two listings only the locks on the screen are
//! inspected, so the cost depends on the height of the terminal, not on the number of locks.

mod model;
mod screen;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use leasehold::{Client, Key, Listing, LockInfo};
use ratatui::crossterm::event::Event;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use self::model::{Action, Model};
use self::screen::Screen;
use super::force_release::why_not;
use super::ls::tell_if_empty;
use crate::arguments;
use crate::cli::Top;
use crate::context::Context;
use crate::describe::tell_unreadable;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::outage::late;
use crate::output;
use crate::pauses::{Listings, until};
use crate::signals::{Signals, number};

/// The store is listed again after this number of looks, or a time that is long compared with a
/// listing.
const LOOKS_PER_LISTING: u32 = 5;

/// What was learned of the store.
#[derive(Debug)]
enum News {
    Listed(leasehold::Result<Listing>, Duration),
    /// Some locks; unused ones are `None`.
    Looked(Vec<(Key, Option<LockInfo>)>),
    /// The outcome of a force-release, and the lock after it.
    Released(String),
    Failed(String),
}

pub(crate) async fn top(args: &Top, context: &Context) -> Outcome {
    let prefix = arguments::prefix(args.prefix.as_deref())?;
    let mut model = Model::new(args.sort, Instant::now());
    let client = context.connect_to_look().await?;
    if args.once {
        let listing = match client {
            Some(client) => client.list(prefix).await?,
            None => Listing::default(),
        };
        model.listed(listing.clone(), Instant::now());
        output::data(&output::table(&view::table(&model, Instant::now())))?;
        tell_if_empty(&listing, prefix, context);
        return Ok(tell_unreadable(&listing.unreadable));
    }
    output::refuse_closed()?;
    if !io::stdout().is_terminal() {
        return Err(Failure::usage("standard output is not a terminal; give --once for a table"));
    }
    if std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb") {
        let why = "a dumb terminal (TERM) has no screen; give --once for a table";
        return Err(Failure::usage(why));
    }
    let client = match client {
        Some(client) => client,
        // Another process may make the store meanwhile.
        None => {
            return Err(Failure::new(
                Exit::Store,
                format!("no store is at {} yet", context.settings.place()),
            ));
        }
    };
    let mut signals = context.catch_signals()?;
    let screen = Screen::open().map_err(|error| Failure::system("use the terminal", &error))?;
    let every = args.every.max(Duration::from_millis(100));
    watch(model, screen, &client, prefix, every, &mut signals).await
}

async fn watch(
    mut model: Model,
    mut screen: Screen,
    client: &Client,
    prefix: &str,
    every: Duration,
    signals: &mut Signals,
) -> Outcome {
    let mut keys = screen::keys();
    let (news_to, mut news) = mpsc::channel(8);
    let mut asking = JoinSet::new();
    let mut list_at = Instant::now();
    let mut listings = Listings::default();
    // While one is under way.
    let mut late_at = None;
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let draw =
            screen.draw(|frame| view::draw(frame, &mut model, client.location(), Instant::now()));
        draw.map_err(|error| output::not_written(&error))?;
        tokio::select! {
            signal = signals.next_fatal() => return Err(Failure::silent(Exit::Signal(number(signal)))),
            // One question at a time: a store that is slow is not to be asked more for it.
            _ = tick.tick(), if asking.is_empty() => {
                let now = Instant::now();
                if now >= list_at {
                    // Until the answer says when.
                    list_at = now + every * LOOKS_PER_LISTING;
                    late_at = now.checked_add(listings.late_after());
                    asking.spawn(list(client.clone(), prefix.to_owned(), news_to.clone()));
                } else {
                    asking.spawn(look(client.clone(), model.visible(), news_to.clone()));
                }
            }
            Some(_) = asking.join_next(), if !asking.is_empty() => {}
            () = until(late_at) => {
                late_at = None;
                let why = late(client.location(), listings.late_after());
                model.told(format!("{}; trying again", chain(&why)));
            }
            Some(told) = news.recv() => match told {
                News::Listed(Ok(listing), took) => {
                    let now = Instant::now();
                    late_at = None;
                    listings.done(took);
                    list_at = now + (every * LOOKS_PER_LISTING).max(listings.apart());
                    model.listed(listing, now);
                }
                News::Listed(Err(error), _) => {
                    late_at = None;
                    list_at = Instant::now() + every;
                    model.told(format!("{}; trying again", chain(&error)));
                }
                News::Looked(locks) => model.looked(locks, Instant::now()),
                News::Released(text) => {
                    list_at = Instant::now();
                    model.told(text);
                }
                News::Failed(text) => model.told(text),
            },
            event = keys.recv() => match event {
                // The terminal is gone.
                None => return Ok(Exit::Success),
                Some(Event::Key(key)) => match model.key(key) {
                    Action::None => {}
                    Action::Quit => return Ok(Exit::Success),
                    Action::Suspend => {
                        screen = screen
                            .suspend()
                            .map_err(|error| Failure::system("use the terminal", &error))?;
                    }
                    Action::Release(key, fence) => {
                        model.told(format!("force-releasing \"{key}\""));
                        let (client, news_to) = (client.clone(), news_to.clone());
                        tokio::spawn(async move {
                            let text = match client.force_release(&key, fence).await {
                                Ok(done) => News::Released(match why_not(&done) {
                                    None => format!("force-released \"{key}\" (fence {fence})"),
                                    Some(why) => format!("\"{key}\": {why}"),
                                }),
                                Err(error) => News::Failed(chain(&error)),
                            };
                            // Nobody listens any more at the end.
                            news_to.send(text).await.ok();
                        });
                    }
                },
                Some(_) => {}
            },
        }
    }
}

async fn list(client: Client, prefix: String, news: mpsc::Sender<News>) {
    let begun = Instant::now();
    let listing = client.list(&prefix).await;
    news.send(News::Listed(listing, begun.elapsed())).await.ok();
}

/// Asks for the locks that are on the screen, all at once.
async fn look(client: Client, keys: Vec<Key>, news: mpsc::Sender<News>) {
    let mut asked = JoinSet::new();
    for key in keys {
        let client = client.clone();
        asked.spawn(async move {
            let info = client.inspect(&key).await;
            (key, info)
        });
    }
    let mut locks = Vec::new();
    while let Some(Ok((key, info))) = asked.join_next().await {
        match info {
            Ok(info) => locks.push((key, info)),
            Err(error) => {
                news.send(News::Failed(format!("{}; trying again", chain(&error)))).await.ok();
                return;
            }
        }
    }
    news.send(News::Looked(locks)).await.ok();
}
