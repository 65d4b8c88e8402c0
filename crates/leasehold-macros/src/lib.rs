//! The attribute [`macro@locked`], used as `leasehold::locked` with the feature `macros`.

use proc_macro::TokenStream;

mod locked;

/// Runs a function under a lock.
///
/// Each call takes the mutex of that name, runs the body under it, and releases it, as
/// `leasehold::Mutex::run` does. The lease is renewed meanwhile. When it is lost the body is
/// dropped where it stands, before the store can grant the lock to another holder.
///
/// ```
/// use leasehold::{Client, Result};
///
/// #[leasehold::locked("report-{id}")]
/// async fn write_report(client: &Client, id: u32) -> Result<u32> {
///     // One at a time for each id, in all processes that share the store.
///     Ok(id * 2)
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let client = Client::connect("memory:").await?;
/// assert_eq!(write_report(&client, 7).await?, 14);
/// # Ok(()) }
/// ```
///
/// # Arguments
///
/// First comes the lock's name, as for `format!`: what is in scope in the function stands in
/// braces, and expressions may follow: `"report-{}", report.id`. Then, in any order:
///
/// | argument | means | without it |
/// | --- | --- | --- |
/// | `client = EXPRESSION` | the client, say `client = self.locks` | what is called `client` there |
/// | `within = EXPRESSION` | how long to wait, a `Duration`; zero tries once | as long as it takes |
/// | `ttl = EXPRESSION` | the length of a lease, a `Duration` | the client's |
/// | `options = EXPRESSION` | `&LockOptions` | |
/// | `lease = NAME` | the name by which the body sees its lease (`HeldLease`), for its fence, say | |
///
/// ```
/// # use std::time::Duration;
/// use leasehold::{Client, Error, ErrorKind};
///
/// struct Ledger {
///     locks: Client,
/// }
///
/// impl Ledger {
///     #[leasehold::locked("account/{}", account.to_lowercase(), client = self.locks,
///                         within = Duration::ZERO, lease = lease)]
///     async fn book(&mut self, account: &str) -> Result<u64, Error> {
/// // For the resource, which refuses a stale holder by it.
///         Ok(lease.fence()?.value())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let client = Client::connect("memory:").await?;
/// let mut ledger = Ledger { locks: client.clone() };
/// let fence = ledger.book("Ann").await?;
/// # assert!(fence > 0);
/// let guard = client.mutex("account/ann").lock().await?;
/// assert_eq!(ledger.book("Ann").await.unwrap_err().kind(), ErrorKind::Timeout);
/// # guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # The function
///
/// It is `async`, or it is for threads and waits as `leasehold::Wait` does. The body of the latter
/// runs on after a loss, since a thread can't be stopped from outside.
///
/// It returns a `Result` whose error can be made of a `leasehold::Error`, and has no `impl Trait`
/// in it. Write the attribute on the function itself, below others that change it.
///
/// ```compile_fail
/// #[leasehold::locked("report")]
/// async fn nothing_can_go_wrong(client: &leasehold::Client) {}
/// ```
///
/// The mutex is not re-entrant: a function that calls itself under the same name waits for itself.
///
/// # Errors
///
/// The errors of `Mutex::run`, through `From`. An error that the body has returned comes first. If
/// the body came to its end with `Ok` and did not have the lock until then, that is an error as
/// well (`Lost` or `Late`).
///
/// # Time
///
/// A round trip to take the lock if it is free, and one to release it.
///
/// # Cancel safety
///
/// As of `Mutex::run`: the body is dropped, and the lease released in the background.
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, function: TokenStream) -> TokenStream {
    locked::expand(arguments.into(), function.into()).unwrap_or_else(locked::refused).into()
}
