//! Passes a request to release to a holder that is named by lock and fence, and its answer back.
//!
//! It uses an abstract socket: no file is left behind, and only a live holder has one. Both sides
//! belong to one user, or to root.

use crate::exit::Exit;

/// How a hold ended: the exit code, and what there is to say about it.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    pub(crate) said: Vec<String>,
}

#[cfg(target_os = "linux")]
pub(crate) use self::by_socket::{Asked, Ears, ask};
#[cfg(not(target_os = "linux"))]
pub(crate) use self::nowhere::{Asked, Ears, ask};

#[cfg(target_os = "linux")]
mod by_socket {
    use std::io::{self, Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::time::Duration;

    use leasehold::Key;
    use rustix::process::Uid;
    use tokio::sync::mpsc;

    use crate::cmd::hold::letting_go::Ended;
    use crate::exit::Exit;
    use crate::failure::{Failure, Outcome};
    use crate::fnv;

    /// A release at a store that is away takes as long as the command lets it, and this is longer.
    const ANSWER_WITHIN: Duration = Duration::from_secs(120);

    /// Where the holder listens. The address needs the fence.
    fn address(key: &Key, fence: u64, place: &str) -> io::Result<SocketAddr> {
        // Names may be longer than an address, and two with one address gain nothing.
        let hash = fnv::hash(&[place.as_bytes(), key.as_str().as_bytes()]);
        let uid = rustix::process::geteuid().as_raw();
        SocketAddr::from_abstract_name(format!("leasehold/hold/{uid}/{fence}/{hash:016x}"))
    }

    /// Listens for every fence of a hold.
    #[derive(Debug)]
    pub(crate) struct Ears(mpsc::Receiver<Asked>);

    /// A release request whose sender waits for the answer.
    #[derive(Debug)]
    pub(crate) struct Asked(UnixStream);

    impl Ears {
        pub(crate) fn new<'a>(
            fences: impl Iterator<Item = (&'a Key, u64)>,
            place: &str,
        ) -> io::Result<Self> {
            let (tell, asked) = mpsc::channel(1);
            for (key, fence) in fences {
                let listener = UnixListener::bind_addr(&address(key, fence, place)?)?;
                listener.set_nonblocking(true)?;
                let listener = tokio::net::UnixListener::from_std(listener)?;
                let tell = tell.clone();
                tokio::spawn(async move {
                    while let Ok((stream, _)) = listener.accept().await {
                        let is_ours = stream.peer_cred().is_ok_and(|peer| may_ask(peer.uid()));
                        if let (true, Ok(stream)) = (is_ours, stream.into_std()) {
                            tell.send(Asked(stream)).await.ok();
                        }
                    }
                });
            }
            Ok(Self(asked))
        }

        /// Returns at a release request. Cancel safe.
        pub(crate) async fn asked(&mut self) -> Asked {
            match self.0.recv().await {
                Some(asked) => asked,
                None => std::future::pending().await,
            }
        }
    }

    impl Asked {
        pub(crate) fn answer(mut self, ended: &Ended) {
            let text = format!("{}\n{}", ended.exit.code(), ended.said.join("\n"));
            // The sender may have ended meanwhile.
            self.0.set_nonblocking(false).and_then(|()| self.0.write_all(text.as_bytes())).ok();
        }
    }

    fn may_ask(uid: u32) -> bool {
        uid == 0 || Uid::from_raw(uid) == rustix::process::geteuid()
    }

    /// A process in another namespace has no number. The call of rustix can't express that.
    fn uid_of_peer(stream: &UnixStream) -> io::Result<u32> {
        let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or_default();
        // SAFETY: the call writes no more than `length` bytes to `peer`, which has as many.
        let asked = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut length,
            )
        };
        if asked == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
    }

    /// Has a holder release, and returns after that, or at once with `None` if no holder listens.
    pub(crate) fn ask(key: &Key, fence: u64, place: &str) -> Outcome<Option<Exit>> {
        let failed =
            |error: io::Error| Failure::system("request the release from the holder", &error);
        let address = address(key, fence, place).map_err(failed)?;
        let mut stream = match UnixStream::connect_addr(&address) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        if !uid_of_peer(&stream).is_ok_and(may_ask) {
            return Ok(None);
        }
        let mut answer = String::new();
        let read = stream
            .set_read_timeout(Some(ANSWER_WITHIN))
            .and_then(|()| stream.read_to_string(&mut answer));
        if let Err(error) = read {
            return match error.kind() {
                // It has released for an earlier request.
                io::ErrorKind::ConnectionReset => Ok(None),
                _ => Err(failed(error)),
            };
        }
        match answer.split_once('\n') {
            Some(("0", _)) => Ok(Some(Exit::Success)),
            Some((code, said)) if code.parse::<u8>().is_ok() => {
                Err(Failure::new(Exit::Code(code.parse().unwrap_or_default()), said))
            }
            _ => Err(Failure::new(Exit::Lost, "the holder ended before it reported the release")),
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod nowhere {
    use std::io;

    use leasehold::Key;

    use crate::cmd::hold::letting_go::Ended;
    use crate::exit::Exit;
    use crate::failure::{Failure, Outcome};

    #[derive(Debug)]
    pub(crate) struct Ears;
    #[derive(Debug)]
    pub(crate) struct Asked;

    impl Ears {
        pub(crate) fn new<'a>(
            _: impl Iterator<Item = (&'a Key, u64)>,
            _: &str,
        ) -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) async fn asked(&mut self) -> Asked {
            std::future::pending().await
        }
    }

    impl Asked {
        pub(crate) fn answer(self, _: &Ended) {}
    }

    pub(crate) fn ask(_: &Key, _: u64, _: &str) -> Outcome<Option<Exit>> {
        Err(Failure::new(Exit::System, "this works on Linux only; use `ask`"))
    }
}
