//! `leasehold top`: watch the locks in use in a terminal.
//!
//! The store is listed now and then. Between two listings only the locks on the screen are
//! inspected, so the cost depends on the height of the terminal, not on the number of locks.

mod model;
mod screen;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use leasehold::{Client, Fence, Key, Listing, LockInfo};
use ratatui::crossterm::event::Event as Input;
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

#[derive(Debug)]
enum Event {
    /// Time to look at the store again.
    Tick,
    /// A listing takes longer than expected.
    Late,
    Key(Action),
    Listed(leasehold::Result<Listing>, Duration),
    /// Some locks; unused ones are `None`.
    Looked(Vec<(Key, Option<LockInfo>)>),
    /// The outcome of a force-release.
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
    let (answer_to, mut answers) = mpsc::channel(8);
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
        let event = tokio::select! {
            signal = signals.next_fatal() => {
                return Err(Failure::silent(Exit::Signal(number(signal))));
            }
            // One question at a time: a slow store gets no more requests for that.
            _ = tick.tick(), if asking.is_empty() => Event::Tick,
            Some(_) = asking.join_next(), if !asking.is_empty() => continue,
            () = until(late_at) => Event::Late,
            Some(answer) = answers.recv() => answer,
            input = keys.recv() => match input {
                // The terminal is gone.
                None => return Ok(Exit::Success),
                Some(Input::Key(key)) => Event::Key(model.key(key)),
                Some(_) => continue,
            },
        };
        let now = Instant::now();
        match event {
            Event::Tick if now >= list_at => {
                // Until the answer says when.
                list_at = now + every * LOOKS_PER_LISTING;
                late_at = now.checked_add(listings.late_after());
                asking.spawn(list(client.clone(), prefix.to_owned(), answer_to.clone()));
            }
            Event::Tick => {
                asking.spawn(look(client.clone(), model.visible(), answer_to.clone()));
            }
            Event::Late => {
                late_at = None;
                let why = late(client.location(), listings.late_after());
                model.told(format!("{}; trying again", chain(&why)));
            }
            Event::Listed(Ok(listing), took) => {
                late_at = None;
                listings.done(took);
                list_at = now + (every * LOOKS_PER_LISTING).max(listings.apart());
                model.listed(listing, now);
            }
            Event::Listed(Err(error), _) => {
                late_at = None;
                list_at = now + every;
                model.told(format!("{}; trying again", chain(&error)));
            }
            Event::Looked(locks) => model.looked(locks, now),
            Event::Released(text) => {
                list_at = now;
                model.told(text);
            }
            Event::Failed(text) => model.told(text),
            Event::Key(Action::None) => {}
            Event::Key(Action::Quit) => return Ok(Exit::Success),
            Event::Key(Action::Suspend) => {
                let suspended = screen.suspend();
                screen = suspended.map_err(|error| Failure::system("use the terminal", &error))?;
            }
            Event::Key(Action::Release(key, fence)) => {
                model.told(format!("force-releasing \"{key}\""));
                tokio::spawn(force_release(client.clone(), key, fence, answer_to.clone()));
            }
        }
    }
}

async fn force_release(client: Client, key: Key, fence: Fence, answer_to: mpsc::Sender<Event>) {
    let outcome = match client.force_release(&key, fence).await {
        Ok(done) => Event::Released(match why_not(&done) {
            None => format!("force-released \"{key}\" (fence {fence})"),
            Some(why) => format!("\"{key}\": {why}"),
        }),
        Err(error) => Event::Failed(chain(&error)),
    };
    // At the end there is no receiver.
    answer_to.send(outcome).await.ok();
}

async fn list(client: Client, prefix: String, answer_to: mpsc::Sender<Event>) {
    let begun = Instant::now();
    let listing = client.list(&prefix).await;
    answer_to.send(Event::Listed(listing, begun.elapsed())).await.ok();
}

/// Asks for the locks that are on the screen, all at once.
async fn look(client: Client, keys: Vec<Key>, answer_to: mpsc::Sender<Event>) {
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
                answer_to
                    .send(Event::Failed(format!("{}; trying again", chain(&error))))
                    .await
                    .ok();
                return;
            }
        }
    }
    answer_to.send(Event::Looked(locks)).await.ok();
}
