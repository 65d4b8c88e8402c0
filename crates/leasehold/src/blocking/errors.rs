//! The sentences about errors that the documentation of blocking calls shares.

/// The errors of a class of calls, as text for their documentation.
macro_rules! errors {
    (waiting) => {
        "* [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) – inside an async runtime, or in a fork's \
         child: waiting is wrong there, and no request was sent.\n"
    };
    (store) => {
        concat!(
            "* [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) and others – the store \
             could not be reached; [`Error::effect`](crate::Error::effect) says whether it was done \
             anyway.\n",
            $crate::blocking::errors::errors!(waiting)
        )
    };
    (asking) => {
        concat!(
            "* [`ErrorKind::Config`](crate::ErrorKind::Config) – a bad name or setting.\n",
            $crate::blocking::errors::errors!(store)
        )
    };
    (asking_foreign) => {
        concat!(
            "* [`ErrorKind::Foreign`](crate::ErrorKind::Foreign) – the key has a value that is not a \
             lock of this layout.\n",
            $crate::blocking::errors::errors!(asking)
        )
    };
    (trying_foreign) => {
        concat!(
            "* [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) – a setting that the layout \
             can't keep.\n",
            $crate::blocking::errors::errors!(asking_foreign)
        )
    };
    (taking_foreign) => {
        concat!(
            "* [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) – the limit was reached, or the \
             retry strategy ended.\n",
            $crate::blocking::errors::errors!(trying_foreign)
        )
    };
    (renewing_foreign) => {
        concat!(
            "* [`ErrorKind::Lost`](crate::ErrorKind::Lost) – the lease was not held any more.\n",
            "* [`ErrorKind::Config`](crate::ErrorKind::Config) – the ttl is out of range; no \
             request was sent.\n",
            $crate::blocking::errors::errors!(store)
        )
    };
    (releasing_foreign) => {
        concat!(
            "* [`ErrorKind::Lost`](crate::ErrorKind::Lost) – the lease was not held any more.\n",
            $crate::blocking::errors::errors!(ending)
        )
    };
    (trying) => {
        concat!(
            "* [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) – the name is in use as another \
             kind of lock, or with another limit.\n",
            $crate::blocking::errors::errors!(asking)
        )
    };
    (taking) => {
        concat!(
            "* [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) – the retry strategy ended.\n",
            $crate::blocking::errors::errors!(trying)
        )
    };
    (taking_within) => {
        concat!(
            "* [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) – the limit was reached, or the \
             retry strategy ended. The error names the holder \
             ([`Error::holder`](crate::Error::holder)) and how long its lease still runs \
             ([`Error::retry_after`](crate::Error::retry_after)).\n",
            $crate::blocking::errors::errors!(trying)
        )
    };
    (gone) => {
        concat!(
            "* [`ErrorKind::Late`](crate::ErrorKind::Late) – the lease had expired, though no \
             other holder has had the lock since.\n",
            "* [`ErrorKind::Lost`](crate::ErrorKind::Lost) – the lease was not held any more, and \
             another holder may have come.\n"
        )
    };
    (renewing) => {
        concat!(
            $crate::blocking::errors::errors!(gone),
            "* [`ErrorKind::Config`](crate::ErrorKind::Config) – the ttl is out of range; no \
             request was sent.\n",
            $crate::blocking::errors::errors!(store)
        )
    };
    (releasing) => {
        concat!(
            $crate::blocking::errors::errors!(gone),
            $crate::blocking::errors::errors!(store),
            "\nThe guard is gone with every error; what it held is released in the background.\n"
        )
    };
    (ending) => {
        concat!(
            $crate::blocking::errors::errors!(store),
            "\nThe guard is gone with every error; what it held is released in the background.\n"
        )
    };
    (releasing_detached) => {
        concat!(
            $crate::blocking::errors::errors!(gone),
            $crate::blocking::errors::errors!(store)
        )
    };
    (changing) => {
        concat!(
            "A guard comes with every error, held as before if that can be proven:\n\n",
            "* [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) – others share the lock.\n",
            $crate::blocking::errors::errors!(renewing)
        )
    };
    (running) => {
        concat!(
            "* [`ErrorKind::Late`](crate::ErrorKind::Late) – the lease had expired before the body \
             ended, though no other holder took the lock.\n",
            "* [`ErrorKind::Lost`](crate::ErrorKind::Lost) – the lease was lost before the body \
             ended.\n",
            $crate::blocking::errors::errors!(waiting),
            "\nWhat the body has returned is in the error \
             ([`RunError::into_output`](crate::RunError::into_output)).\n"
        )
    };
}
pub(super) use errors;
