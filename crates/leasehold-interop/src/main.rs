//! Runs leasehold and the lock libraries of other languages on the same locks, on one server.
//!
//! `cargo xtask interop` builds their programs and calls this with the folder of their sources, the
//! folder in which they were built, and the names of those that are to be tried, or none for all.
#![allow(clippy::print_stdout, reason = "it prints a table")]

mod program;
mod trial;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use leasehold_testkit::server::RedisServer;
use tokio::task::JoinSet;

use crate::program::Programs;
use crate::trial::{Outcome, PEERS, Peer, Trial};

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["hold", url, layout, key] => trial::hold_until_killed(url, layout, key).await,
        [sources, built, names @ ..] => all(Path::new(sources), Path::new(built), names).await,
        _ => bail!("give the folder of the sources, and that of what was built"),
    }
}

async fn all(sources: &Path, built: &Path, names: &[&str]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| PEERS.iter().all(|peer| peer.name != **name)) {
        bail!("no library is called {unknown:?}");
    }
    let server = Arc::new(RedisServer::start());
    let programs = Arc::new(Programs::new(sources, built, server.port()));
    let folder = tempfile::tempdir()?;
    let chosen = PEERS.into_iter().filter(|peer| names.is_empty() || names.contains(&peer.name));
    let mut languages: BTreeMap<&str, Vec<Peer>> = BTreeMap::new();
    for peer in chosen {
        languages.entry(peer.language).or_default().push(peer);
    }
    // Most of the time goes by in waiting for leases to run out, which languages can do together.
    let mut trials = JoinSet::new();
    for peers in languages.into_values() {
        let (server, programs) = (Arc::clone(&server), Arc::clone(&programs));
        let folder = folder.path().to_owned();
        trials.spawn(async move {
            let mut outcomes = Vec::new();
            for peer in peers {
                let (server, programs) = (Arc::clone(&server), Arc::clone(&programs));
                let outcome = Trial { server, programs, peer }.run(&folder).await;
                outcomes.push((peer, outcome.with_context(|| peer.name.to_owned())?));
            }
            anyhow::Ok(outcomes)
        });
    }
    let mut outcomes = Vec::new();
    while let Some(some) = trials.join_next().await {
        outcomes.extend(some??);
    }
    outcomes.sort_by_key(|(peer, _)| PEERS.iter().position(|other| other.name == peer.name));
    print!("{}", table(&outcomes));
    Ok(())
}

fn table(outcomes: &[(Peer, Outcome)]) -> String {
    let mut table = "| library | ours after their release | theirs after our release | loss told \
                     after | a value of another type is to them | readable |\n\
                     | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for (peer, outcome) in outcomes {
        let Outcome { ours_after_theirs, theirs_after_ours, loss, wrong_type, text } = outcome;
        table += &format!(
            "| {} | {ours_after_theirs:.1} ms | {theirs_after_ours:.1} ms | {loss:.1} ms | \
             {wrong_type} | {text} |\n",
            peer.name
        );
    }
    table
}
