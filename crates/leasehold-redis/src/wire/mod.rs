//! Encodes requests and decodes what is stored.

pub(crate) mod forms;
pub(crate) mod names;
pub(crate) mod raw;
pub(crate) mod reply;
pub(crate) mod request_text;
pub(crate) mod spelling;
pub(crate) mod stored;
