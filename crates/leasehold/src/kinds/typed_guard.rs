//! What the guards of all kinds share: a view of the lease, and the ways to end it.

/// The guard of one kind of lock, around the plain [`Guard`](crate::Guard). Each kind names the
/// methods that end it.
macro_rules! typed_guard {
    ($guard:ident: $release:ident, $outcome:ident, $cooldown:ident, $cooldown_outcome:ident) => {
        impl $guard {
            /// A view of the lease, for the work.
            #[must_use]
            pub fn lease(&self) -> &crate::HeldLease {
                self.0.lease()
            }

            /// Ends the lease. An `Ok` says that it was held to its end. See
            /// [`Guard::release`](crate::Guard::release).
            ///
            /// # Cost
            ///
            #[doc = crate::cost::cost!(releasing)]
            ///
            /// # Errors
            ///
            /// As [`Guard::release`](crate::Guard::release).
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: if dropped, the release goes on in the background.
            pub async fn $release(self) -> crate::Result<()> {
                self.0.release().await
            }

            /// Ends the lease, and reports how that went. See
            /// [`Guard::release_outcome`](crate::Guard::release_outcome).
            ///
            /// # Cost
            ///
            #[doc = crate::cost::cost!(releasing)]
            ///
            /// # Errors
            ///
            /// As [`Guard::release_outcome`](crate::Guard::release_outcome).
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: if dropped, the release goes on in the background.
            pub async fn $outcome(self) -> crate::Result<crate::Release> {
                self.0.release_outcome().await
            }

            /// Ends the lease, and starts `cooldown`: until its end no caller can acquire the lock.
            /// See [`Guard::release_with_cooldown`](crate::Guard::release_with_cooldown).
            ///
            /// # Cost
            ///
            #[doc = crate::cost::cost!(request_in_turn)]
            ///
            /// # Errors
            ///
            /// As [`Guard::release`](crate::Guard::release).
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: if dropped, even before the first poll, the release goes on in the
            /// background, with its cooldown.
            pub fn $cooldown(
                self,
                cooldown: crate::Cooldown,
            ) -> impl Future<Output = crate::Result<()>> + Send + use<> {
                self.0.release_with_cooldown(cooldown)
            }

            /// Ends the lease, starts `cooldown`, and reports how that went.
            ///
            /// # Cost
            ///
            #[doc = crate::cost::cost!(request_in_turn)]
            ///
            /// # Errors
            ///
            /// As [`Guard::release_outcome`](crate::Guard::release_outcome).
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: if dropped, even before the first poll, the release goes on in the
            /// background, with its cooldown.
            pub fn $cooldown_outcome(
                self,
                cooldown: crate::Cooldown,
            ) -> impl Future<Output = crate::Result<crate::Release>> + Send + use<> {
                self.0.release_with_cooldown_outcome(cooldown)
            }

            /// Runs `body` under the lease, and releases it. See [`Guard::run`](crate::Guard::run).
            ///
            /// # Cost
            ///
            #[doc = crate::cost::cost!(running)]
            ///
            /// # Errors
            ///
            /// As [`Guard::run`](crate::Guard::run).
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: the body is dropped, and the lease is released in the background.
            pub async fn run<T, F>(
                self,
                body: impl FnOnce(crate::HeldLease) -> F,
            ) -> crate::Result<T, crate::RunError<T>>
            where
                F: Future<Output = T>,
            {
                self.0.run(body).await
            }

            /// Detaches the lease: it lives on without this guard until it expires. See
            /// [`Guard::detach`](crate::Guard::detach).
            ///
            /// # Cost
            ///
            #[doc = crate::cost::cost!(detaching)]
            ///
            /// # Errors
            ///
            /// As [`Guard::detach`](crate::Guard::detach); the guard comes back with the error.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: if dropped, the lease is released in the background.
            pub async fn detach(self) -> crate::Result<crate::DetachedLease, crate::NotChanged<Self>> {
                self.0.detach().await.map_err(|not| not.map(Self))
            }

            /// The plain guard of the same lease.
            pub fn into_guard(self) -> crate::Guard {
                self.0
            }
        }

        impl std::ops::Deref for $guard {
            type Target = crate::HeldLease;

            fn deref(&self) -> &crate::HeldLease {
                self.0.lease()
            }
        }

        impl From<$guard> for crate::Guard {
            fn from(guard: $guard) -> Self {
                guard.0
            }
        }

        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.lease().describe(stringify!($guard), f)
            }
        }
    };
    ($guard:ident) => {
        $crate::kinds::typed_guard::typed_guard!(
            $guard: release, release_outcome, release_with_cooldown, release_with_cooldown_outcome
        );
    };
}
pub(crate) use typed_guard;
