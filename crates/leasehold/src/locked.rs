//! What functions under the attribute `locked` call.

use leasehold_core::Error;

use crate::RunError;

/// What a function returns whose body ran under a lock.
pub fn verdict<T, E: From<Error>>(
    ran: Result<Result<T, E>, RunError<Result<T, E>>>,
) -> Result<T, E> {
    match ran.map_err(RunError::into_parts) {
        Ok(returned) => returned,
        // What the body says says more than that its lease was over by then.
        Err((_, Some(Err(error)))) => Err(error),
        Err((error, _)) => Err(error.into()),
    }
}
