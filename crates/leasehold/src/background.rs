//! The process's own thread, for a program's own tasks, and its timers for those without any.

use std::time::Duration;

use leasehold_clock::Driver;
use leasehold_core::Result;
use tokio::runtime::Handle;

/// The runtime of the process's own thread, which is started if it is not there.
///
/// Leases are renewed on it, and the connections of Redis stores live there. So a future of this
/// library that is spawned there goes on whatever the application's own runtimes do. A program that
/// has no runtime can use it instead. Each process has one such thread, named `leasehold`. It
/// sleeps while it has no work, and ends with the process. A fork's child gets its own here.
///
/// A task that blocks on it stops all renewals of the process while it does.
///
/// ```
/// let (tell, told) = std::sync::mpsc::channel();
/// leasehold::driver()?.spawn(async move {
///     let client = leasehold::Client::connect("memory:").await?;
///     let guard = client.mutex("reports/daily").lock().await?;
///     tell.send(guard.fence()).ok();
///     guard.release().await
/// });
/// assert!(told.recv().is_ok());
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the system has too few threads or
/// descriptors.
pub fn driver() -> Result<Handle> {
    Driver::current().map(|driver| driver.runtime().clone())
}

/// Sleeps on the thread's timers, for callers without timers of their own, or whose time stands
/// still. Cancel safe.
pub(crate) async fn sleep(pause: Duration) {
    if let Ok(driver) = Driver::current() {
        // Made on the thread, so that it uses that runtime's timers and not the caller's.
        let sleeping = driver.runtime().spawn(async move { tokio::time::sleep(pause).await });
        drop(sleeping.await);
    }
}
