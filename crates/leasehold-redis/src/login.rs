//! How connections to a server begin: secured, and logged in.

use std::fmt;
use std::net::SocketAddr;

use redis::{ProtocolVersion, RedisConnectionInfo};

use crate::address::Endpoint;
use crate::classify::{self, Stage, Verdict};
use crate::dial::{Socket, dial};
use crate::tls::Tls;

/// What it takes to be let in by servers.
pub(crate) struct Logins {
    login: RedisConnectionInfo,
    tls: Tls,
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Logins").field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl Logins {
    pub(crate) const fn new(login: RedisConnectionInfo, tls: Tls) -> Self {
        Self { login, tls }
    }

    /// A connection on which nothing is under way, in this version of the protocol if it is said.
    pub(crate) async fn enter(
        &self,
        endpoint: &Endpoint,
        at: Option<SocketAddr>,
        protocol: Option<ProtocolVersion>,
    ) -> Result<Socket, Verdict> {
        let login = match protocol {
            Some(protocol) => self.login.clone().set_protocol(protocol),
            None => self.login.clone(),
        };
        let socket = dial(endpoint, at, &self.tls).await?;
        let heard = socket.first_words();
        let entered = socket.log_in(&login).await;
        entered.map_err(|error| heard.explain(classify::judge(&error, Stage::Connecting)))
    }
}
