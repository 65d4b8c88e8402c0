//! Makes, keeps and replaces connections, and sends requests over them.

pub(crate) mod access;
pub(crate) mod alert;
pub(crate) mod borrowed;
pub(crate) mod connection;
pub(crate) mod credentials;
pub(crate) mod dial;
pub(crate) mod listen;
pub(crate) mod login;
pub(crate) mod passwords;
pub(crate) mod pause;
pub(crate) mod pipe;
pub(crate) mod resp;
pub(crate) mod tls;
pub(crate) mod transport;
