//! The examples run, and what they assert holds.

#[path = "../../examples/cron_report.rs"]
mod cron_report;
#[path = "../../examples/election.rs"]
mod election;
#[path = "../../examples/flash_sale.rs"]
mod flash_sale;
#[path = "../../examples/increasing_ids.rs"]
mod increasing_ids;
#[path = "../../examples/job_queue.rs"]
mod job_queue;
#[path = "../../examples/rw_cache.rs"]
mod rw_cache;
#[path = "../../examples/thread_floors.rs"]
mod thread_floors;

#[path = "../../examples/fencing.rs"]
mod fencing;
#[path = "../../examples/mutex.rs"]
mod mutex;
#[path = "../../examples/threads.rs"]
mod threads;

#[test]
fn the_threads_example_runs() {
    threads::main().unwrap();
}

#[test]
fn the_fencing_example_runs() {
    fencing::main().unwrap();
}

#[test]
fn the_mutex_example_runs() {
    mutex::main().unwrap();
}

/// Every example that takes a store, on one store.
async fn run_all(url: &str) {
    cron_report::run(url).await.unwrap();
    election::run(url).await.unwrap();
    flash_sale::run(url).await.unwrap();
    increasing_ids::run(url).await.unwrap();
    job_queue::run(url).await.unwrap();
    rw_cache::run(url).await.unwrap();
    thread_floors::run(url).await.unwrap();
}

#[tokio::test]
async fn the_examples_run_in_memory() {
    run_all("memory:").await;
}

#[tokio::test]
async fn the_examples_run_on_one_machine() {
    let dir = tempfile::tempdir().unwrap();
    run_all(&format!("embedded:{}", dir.path().join("locks").display())).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn the_examples_run_on_a_server() {
    run_all(&leasehold_testkit::server::shared().url()).await;
}

#[test]
fn the_readme_shows_an_example_as_it_is() {
    let readme = include_str!("../../../../README.md");
    let shown = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    assert!(include_str!("../../examples/readme.rs").ends_with(shown.unwrap()));
}
