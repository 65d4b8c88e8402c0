//! Runs leasehold and the lock libraries of other languages on the same locks.
//!
//! They meet on one server and in a cluster.
//!
//! `cargo xtask interop` builds their programs and calls this. The arguments are the folder of
//! their sources, the folder of their builds, and the names of the libraries to try, or none for
//! all.
#![allow(clippy::print_stdout, reason = "it prints a table")]

mod program;
mod trial;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use tokio::task::JoinSet;

use crate::program::Programs;
use crate::trial::{Outcome, PEERS, Peer, Servers, Times, Trial};

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
    let one = Arc::new(Servers::One(Box::new(RedisServer::start())));
    let cluster = Arc::new(Servers::Cluster(Box::new(Cluster::builder().replicas(0).start())));
    let folder = tempfile::tempdir()?;
    let chosen = PEERS.into_iter().filter(|peer| names.is_empty() || names.contains(&peer.name));
    let mut languages: BTreeMap<&str, Vec<Peer>> = BTreeMap::new();
    for peer in chosen {
        languages.entry(peer.language).or_default().push(peer);
    }
    // Most of the time is spent waiting for leases to expire, which languages can do in parallel.
    let mut trials = JoinSet::new();
    let programs = |servers: &Servers| Arc::new(Programs::new(sources, built, servers.ports()));
    let (at_one, at_cluster) = (programs(&one), programs(&cluster));
    for peers in languages.into_values() {
        let (one, cluster) = (Arc::clone(&one), Arc::clone(&cluster));
        let (at_one, at_cluster) = (Arc::clone(&at_one), Arc::clone(&at_cluster));
        let folder = folder.path().to_owned();
        trials.spawn(async move {
            let (mut outcomes, mut clustered) = (Vec::new(), Vec::new());
            for peer in peers {
                let (servers, programs) = (Arc::clone(&one), Arc::clone(&at_one));
                let outcome = Trial { servers, programs, peer }.run(&folder).await;
                outcomes.push((peer, outcome.with_context(|| peer.name.to_owned())?));
                if peer.clusters {
                    let (servers, programs) = (Arc::clone(&cluster), Arc::clone(&at_cluster));
                    let outcome = Trial { servers, programs, peer }.run_in_cluster(&folder).await;
                    let outcome = outcome.with_context(|| format!("{} in a cluster", peer.name))?;
                    clustered.push((peer, outcome));
                }
            }
            anyhow::Ok((outcomes, clustered))
        });
    }
    let (mut outcomes, mut clustered) = (Vec::new(), Vec::new());
    while let Some(some) = trials.join_next().await {
        let (some, some_clustered) = some??;
        outcomes.extend(some);
        clustered.extend(some_clustered);
    }
    let place = |peer: &Peer| PEERS.iter().position(|other| other.name == peer.name);
    outcomes.sort_by_key(|(peer, _)| place(peer));
    clustered.sort_by_key(|(peer, _)| place(peer));
    print!("{}\n{}", table(&outcomes), table_of_times(&clustered));
    Ok(())
}

fn table_of_times(outcomes: &[(Peer, Times)]) -> String {
    let mut table = "| in a cluster | ours after their release | theirs after our release | loss \
                     told after |\n| --- | --- | --- | --- |\n"
        .to_owned();
    for (peer, Times { ours_after_theirs, theirs_after_ours, loss }) in outcomes {
        table += &format!(
            "| {} | {ours_after_theirs:.1} ms | {theirs_after_ours:.1} ms | {loss:.1} ms |\n",
            peer.name
        );
    }
    table
}

fn table(outcomes: &[(Peer, Outcome)]) -> String {
    let mut table = "| library | ours after their release | theirs after our release | loss told \
                     after | a value of another type is to them | readable |\n\
                     | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for (peer, outcome) in outcomes {
        let Outcome {
            times: Times { ours_after_theirs, theirs_after_ours, loss },
            wrong_type,
            text,
        } = outcome;
        table += &format!(
            "| {} | {ours_after_theirs:.1} ms | {theirs_after_ours:.1} ms | {loss:.1} ms | \
             {wrong_type} | {text} |\n",
            peer.name
        );
    }
    table
}
