//! Wakes waiters of other processes, by a Unix datagram socket for each listening client.
//!
//! The sockets are in the store's directory and are named after their clients.
//!
//! Sending never blocks and may fail: a notification is a hint, and each waiter has its own timers.
//! Clients of the same process are notified directly.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use leasehold_clock::Process;
use leasehold_core::table::Notice;
use leasehold_core::{BoxFuture, ClientId, Listener, Wake};
use tokio::sync::mpsc;

use super::directory::Access;
use super::gate::lock;

/// The first byte of a message.
const VERSION: u8 = 2;

/// A message has a few dozen bytes.
const MESSAGE_BYTES_MAX: usize = 256;

/// A socket's address holds 108 bytes on Linux and 104 elsewhere, with a zero at the end.
const ADDRESS_BYTES_MAX: usize = 103;

/// How often a message to a full socket is tried again. Its reader is a thread that only reads, so
/// there is room soon, or the process is stopped.
const TRIES: usize = 20;

#[derive(Debug)]
pub(super) struct Wakes {
    directory: PathBuf,
    /// Kept open, so that sockets have a short address however long the path is.
    handle: File,
    access: Access,
    /// Whether sockets can be addressed here.
    works: bool,
    sender: UnixDatagram,
    local: Mutex<HashMap<ClientId, Local>>,
}

#[derive(Debug)]
struct Local {
    /// Distinguishes a listener from an earlier one of the same client.
    number: u64,
    messages: mpsc::UnboundedSender<Wake>,
}

impl Wakes {
    pub(super) fn open(directory: PathBuf, access: Access) -> io::Result<Self> {
        let handle = File::open(&directory)?;
        let sender = UnixDatagram::unbound()?;
        sender.set_nonblocking(true)?;
        let local = Mutex::default();
        let mut wakes = Self { directory, handle, access, works: false, sender, local };
        // One check suffices: all addresses have the same length.
        wakes.works = wakes.address(&ClientId::from_bytes([0; 16])).is_some();
        Ok(wakes)
    }

    /// Whether sockets can be addressed here.
    pub(super) const fn works(&self) -> bool {
        self.works
    }

    /// A client's socket, by an address short enough for one.
    fn address(&self, client: &ClientId) -> Option<PathBuf> {
        let name = client.to_string();
        let full = self.directory.join(&name);
        if full.as_os_str().len() <= ADDRESS_BYTES_MAX {
            return Some(full);
        }
        if cfg!(any(target_os = "linux", target_os = "android")) {
            return Some(format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd()).into());
        }
        None
    }

    /// Notifies the clients.
    pub(super) fn deliver(&self, notices: Vec<Notice>) {
        for notice in notices {
            let Notice { client, wake, .. } = notice;
            let local = lock(&self.local).get(&client).map(|local| local.messages.clone());
            match local {
                // A listener that is gone needs no notification.
                Some(messages) => drop(messages.send(wake)),
                None => self.send(&client, &wake),
            }
        }
    }

    fn send(&self, client: &ClientId, wake: &Wake) {
        let Some(address) = self.address(client) else { return };
        let Ok(message) = postcard::to_extend(wake, vec![VERSION]) else { return };
        for _ in 0..TRIES {
            match self.sender.send_to(&message, &address) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    // Its reader is gone for good.
                    remove(&self.directory.join(client.to_string()));
                    return;
                }
                _ => return,
            }
        }
        tracing::debug!(%client, "a waiter's socket is full: the notification is dropped, and its timers wake it");
    }

    /// Opens a client's channel. A message sent after this arrives, unless too many come at once.
    pub(super) fn listen(self: &Arc<Self>, client: ClientId) -> io::Result<Channel> {
        let address =
            self.address(&client).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        let path = self.directory.join(client.to_string());
        remove(&path);
        let socket = UnixDatagram::bind(&address)?;
        set_mode(&path, self.access)?;
        let socket = Arc::new(socket);
        let (messages, receiver) = mpsc::unbounded_channel();
        let over = Arc::new(AtomicBool::new(false));
        let reader = Reader {
            socket: Arc::clone(&socket),
            messages: messages.clone(),
            over: Arc::clone(&over),
        };
        thread::Builder::new().name("leasehold-wake".to_owned()).spawn(move || reader.run())?;
        let number = fastrand::u64(..);
        lock(&self.local).insert(client, Local { number, messages });
        Ok(Channel {
            client,
            number,
            wakes: Arc::clone(self),
            path,
            address,
            messages: receiver,
            over,
            process: Process::current(),
            _socket: socket,
        })
    }
}

/// Corrects the mode, which sockets take from the umask. Until then the directory itself keeps
/// other users out.
fn set_mode(path: &Path, access: Access) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(access.file_mode()))
}

/// Removes sockets without a reader. Only while this process alone uses the store.
pub(super) fn sweep(directory: &Path) {
    let Ok(files) = fs::read_dir(directory) else { return };
    for file in files.flatten() {
        if file.file_name().to_str().is_some_and(is_name) {
            remove(&file.path());
        }
    }
}

/// Removes a socket, and only a socket.
fn remove(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        drop(fs::remove_file(path));
    }
}

/// Whether a socket is named as clients are.
fn is_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

struct Reader {
    socket: Arc<UnixDatagram>,
    messages: mpsc::UnboundedSender<Wake>,
    over: Arc<AtomicBool>,
}

impl Reader {
    fn run(self) {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        loop {
            let message = match self.socket.recv(&mut buffer) {
                Ok(bytes) => buffer.get(..bytes).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            if self.over.load(Ordering::Acquire) {
                return;
            }
            let wake = match message.split_first() {
                Some((&VERSION, body)) => postcard::from_bytes(body).ok(),
                _ => None,
            };
            // From a later version or a foreign program: worth a look at the store.
            if self.messages.send(wake.unwrap_or(Wake::Resync)).is_err() {
                return;
            }
        }
    }
}

/// A client's end of its channel.
#[derive(Debug)]
pub(super) struct Channel {
    client: ClientId,
    number: u64,
    wakes: Arc<Wakes>,
    path: PathBuf,
    address: PathBuf,
    messages: mpsc::UnboundedReceiver<Wake>,
    over: Arc<AtomicBool>,
    process: Process,
    _socket: Arc<UnixDatagram>,
}

impl Listener for Channel {
    fn next(&mut self) -> BoxFuture<'_, Wake> {
        Box::pin(async move {
            match self.messages.recv().await {
                Some(wake) => wake,
                None => std::future::pending().await,
            }
        })
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // A fork has no reader, and the socket's name belongs to its parent.
        if !self.process.is_current() {
            return;
        }
        self.over.store(true, Ordering::Release);
        let mut local = lock(&self.wakes.local);
        // A later listener of the same client has taken the name over, and its reader must not be
        // woken. The end below wakes the reader of the unnamed socket.
        if local.get(&self.client).is_some_and(|local| local.number == self.number) {
            local.remove(&self.client);
            drop(self.wakes.sender.send_to(&[], &self.address));
            remove(&self.path);
        }
        drop(self._socket.shutdown(std::net::Shutdown::Both));
    }
}
