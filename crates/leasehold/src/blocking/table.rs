//! Makes the API for threads and its documentation from a table of methods.
//!
//! Each row is a method of the async API, with its arguments and its answer.

/// A lock value for threads, made of its part of the async API.
macro_rules! value {
    ($(#[$meta:meta])* $type:ident) => {
        $(#[$meta])*
        ///
        /// # Errors
        ///
        /// Each method says its own. Inside an async runtime and in a fork's child, calls that
        /// would wait fail with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse).
        pub struct $type(super::driven::Driven<crate::$type>);

        impl super::face::Face<crate::$type> for $type {
            fn of(part: crate::$type, io: &super::io::Io) -> Self {
                Self(super::driven::Driven::new(part, io.clone()))
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.part().fmt(f)
            }
        }
    };
}

/// The setters of a lock value.
macro_rules! options {
    ($type:ident: $($group:ident)*) => {
        impl $type {
            /// Sets what these options set; the rest stays as it is.
            pub fn options(self, options: &crate::LockOptions) -> Self {
                Self(self.0.map(|value| value.options(options)))
            }
        }

        $crate::options::setters!($type: $($group)*);
    };
}

/// The methods of a type. A row begins with a word for what the method does:
///
/// * `asks` – waits for an answer that may be an error.
/// * `waits` – waits for an event.
/// * `ends` – waits for an answer, and uses the value up.
/// * `makes` – returns another value for threads, at once.
/// * `tells` – returns the same as in the async API, at once.
/// * `checks` – returns the same or an error, at once.
/// * `sets` – returns the value with a setting changed.
macro_rules! methods {
    ($type:ident { $(
        $(#[$doc:meta])*
        $verb:ident $name:ident($($argument:ident: $argument_type:ty),*) $(-> $answer:ty)?
            $(, errors $errors:ident)? $(, costs $cost:ident)?;
    )* }) => {
        impl $type { $(
            $crate::blocking::table::method!(
                $verb $type [$(#[$doc])*] $name ($($argument: $argument_type),*) [$($answer)?]
                [$($errors)?] [$($cost)?]
            );
        )* }
    };
}

macro_rules! method {
    (asks $type:ident [$(#[$doc:meta])*] $name:ident ($($argument:ident: $argument_type:ty),*)
        [$answer:ty] [$errors:ident] [$cost:ident]
    ) => {
        $(#[$doc])*
        ///
        #[doc = concat!("The same for tasks: [`", stringify!($name), "`](crate::", stringify!($type), "::", stringify!($name), ").")]
        ///
        /// # Cost
        ///
        #[doc = $crate::cost::cost!($cost)]
        ///
        /// # Errors
        ///
        #[doc = $crate::blocking::errors::errors!($errors)]
        pub fn $name(&self, $($argument: $argument_type),*) -> crate::Result<$answer> {
            let answer = self.0.wait(|part| part.$name($($argument),*))??;
            Ok(super::face::Face::of(answer, self.0.io()))
        }
    };
    (waits $type:ident [$(#[$doc:meta])*] $name:ident ($($argument:ident: $argument_type:ty),*)
        [$answer:ty] [] [$cost:ident]
    ) => {
        $(#[$doc])*
        ///
        #[doc = concat!("The same for tasks: [`", stringify!($name), "`](crate::", stringify!($type), "::", stringify!($name), ").")]
        ///
        /// # Cost
        ///
        #[doc = $crate::cost::cost!($cost)]
        ///
        /// # Errors
        ///
        #[doc = $crate::blocking::errors::errors!(waiting)]
        pub fn $name(&self, $($argument: $argument_type),*) -> crate::Result<$answer> {
            let answer = self.0.wait(|part| part.$name($($argument),*))?;
            Ok(super::face::Face::of(answer, self.0.io()))
        }
    };
    (ends $type:ident [$(#[$doc:meta])*] $name:ident ($($argument:ident: $argument_type:ty),*)
        [$answer:ty] [$errors:ident] [$cost:ident]
    ) => {
        $(#[$doc])*
        ///
        #[doc = concat!("The same for tasks: [`", stringify!($name), "`](crate::", stringify!($type), "::", stringify!($name), ").")]
        ///
        /// # Cost
        ///
        #[doc = $crate::cost::cost!($cost)]
        ///
        /// # Errors
        ///
        #[doc = $crate::blocking::errors::errors!($errors)]
        pub fn $name(self, $($argument: $argument_type),*) -> crate::Result<$answer> {
            self.0.end(|part| part.$name($($argument),*))
        }
    };
    (makes $type:ident [$(#[$doc:meta])*] $name:ident ($($argument:ident: $argument_type:ty),*)
        [$answer:ty] [] []
    ) => {
        $(#[$doc])*
        ///
        #[doc = concat!("The same for tasks: [`", stringify!($name), "`](crate::", stringify!($type), "::", stringify!($name), ").")]
        pub fn $name(&self, $($argument: $argument_type),*) -> $answer {
            super::face::Face::of(self.0.part().$name($($argument),*), self.0.io())
        }
    };
    (tells $type:ident [$(#[$doc:meta])*] $name:ident ($($argument:ident: $argument_type:ty),*)
        [$answer:ty] [] []
    ) => {
        $(#[$doc])*
        #[must_use]
        pub fn $name(&self, $($argument: $argument_type),*) -> $answer {
            self.0.part().$name($($argument),*)
        }
    };
    (checks $type:ident [$(#[$doc:meta])*] $name:ident () [$answer:ty] [] []) => {
        $(#[$doc])*
        pub fn $name(&self) -> crate::Result<$answer> {
            self.0.part().$name()
        }
    };
    (sets $type:ident [$(#[$doc:meta])*] $name:ident ($($argument:ident: $argument_type:ty),*)
        [] [] []
    ) => {
        $(#[$doc])*
        ///
        #[doc = concat!("The same for tasks: [`", stringify!($name), "`](crate::", stringify!($type), "::", stringify!($name), ").")]
        pub fn $name(self, $($argument: $argument_type),*) -> Self {
            Self(self.0.map(|part| part.$name($($argument),*)))
        }
    };
}

/// A guard for threads, with the view of its lease that it derefs to, and a body run under it.
macro_rules! guard {
    ($(#[$meta:meta])* $type:ident: $lease:ident) => {
        $crate::blocking::table::guard!(
            $(#[$meta])* $type: $lease, |guard, cooldown| crate::Guard::from(guard).end(cooldown)
        );
    };
    ($(#[$meta:meta])* $type:ident: $lease:ident, $end:expr) => {
        $(#[$meta])*
        ///
        /// It derefs to the view of its lease, which has the fencing token, the time left and the
        /// loss.
        ///
        /// # Dropping is not releasing
        ///
        /// leasehold's own thread releases the lease of a dropped guard: soon, but without a time
        /// limit. If the process ends first, the lease expires. Drop never blocks or panics.
        #[must_use = "dropping the guard releases it in the background; end it by a call to be sure"]
        #[clippy::has_significant_drop]
        pub struct $type(super::driven::Driven<crate::$type>, $lease);

        impl $type {
            /// A view of the lease, for the work.
            #[must_use]
            pub const fn lease(&self) -> &$lease {
                &self.1
            }

            /// Runs `body` under the lease, and releases it.
            ///
            /// A thread can't be stopped from outside: when the lease is lost, the body goes on
            /// until it looks. Let it look, with `check` before each side effect, and give the
            /// fencing token to the resource that it works on. If a body panics, the lease is
            /// released in the background.
            ///
            /// # Cost
            ///
            #[doc = $crate::cost::cost!(running_several)]
            ///
            /// # Errors
            ///
            #[doc = $crate::blocking::errors::errors!(running)]
            pub fn run<T>(
                self,
                body: impl FnOnce(&$lease) -> T,
            ) -> crate::Result<T, crate::RunError<T>> {
                let cooldown = |_: &T| crate::lease::handle::requests::Afterwards::AsGranted;
                super::run::run_under(self.0, &self.1, body, cooldown, $end)
            }
        }

        impl super::face::Face<crate::$type> for $type {
            fn of(part: crate::$type, io: &super::io::Io) -> Self {
                let lease = super::face::Face::of(part.lease().clone(), io);
                Self(super::driven::Driven::new(part, io.clone()), lease)
            }
        }

        impl std::ops::Deref for $type {
            type Target = $lease;

            fn deref(&self) -> &Self::Target {
                &self.1
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.part().fmt(f)
            }
        }
    };
}

/// The ways in which the guard of one lease ends, in the words of its kind.
macro_rules! ends {
    ($type:ident: $release:ident, $outcome:ident, $cooldown:ident, $cooldown_outcome:ident) => {
        $crate::blocking::table::methods! { $type {
            /// Ends the lease. An `Ok` says that it was held to its end.
            ends $release() -> (), errors releasing, costs releasing;
            /// Ends the lease, and reports how that went.
            ends $outcome() -> crate::Release, errors ending, costs releasing;
            /// Ends the lease, and starts `cooldown`: until its end no caller can acquire the lock.
            ends $cooldown(cooldown: crate::Cooldown) -> (), errors releasing, costs request_in_turn;
            /// Ends the lease, starts `cooldown`, and reports how that went.
            ends $cooldown_outcome(cooldown: crate::Cooldown) -> crate::Release, errors ending,
                costs request_in_turn;
        } }

        impl $type {
            /// Detaches the lease: it lives on, not renewed, until it expires, and belongs to the
            /// returned value. On the embedded store it still ends with this process, unless the
            /// client takes leases that outlive it
            /// ([`ClientBuilder::detached`](crate::blocking::ClientBuilder::detached)).
            ///
            /// # Cost
            ///
            #[doc = $crate::cost::cost!(detaching)]
            ///
            /// # Errors
            ///
            #[doc = $crate::blocking::errors::errors!(changing)]
            pub fn detach(self) -> crate::Result<crate::DetachedLease, crate::NotChanged<Self>> {
                self.0.change(|guard| guard, crate::$type::detach)
            }
        }
    };
    ($type:ident) => {
        $crate::blocking::table::ends!(
            $type: release, release_outcome, release_with_cooldown, release_with_cooldown_outcome
        );
    };
}

pub(super) use {ends, guard, method, methods, options, value};
