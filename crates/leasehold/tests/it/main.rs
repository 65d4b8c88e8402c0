//! What the client promises, tried from outside.

mod acquire;
mod hold;
mod line;
mod support;
