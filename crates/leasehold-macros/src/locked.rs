//! Rewrites a function under `#[locked]`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned as _;
use syn::{Error, Expr, Ident, ItemFn, LitStr, Result, ReturnType, Token};

/// The attribute's arguments.
struct Arguments {
    name: LitStr,
    /// The arguments after the name, as for `format!`.
    rest: Vec<TokenStream>,
    client: Option<Expr>,
    within: Option<Expr>,
    ttl: Option<Expr>,
    options: Option<Expr>,
    lease: Option<Ident>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name = input.parse().map_err(|error| {
            Error::new(error.span(), "the lock's name comes first: #[locked(\"report-{id}\")]")
        })?;
        let mut arguments = Self {
            name,
            rest: Vec::new(),
            client: None,
            within: None,
            ttl: None,
            options: None,
            lease: None,
        };
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            arguments.one(input)?;
        }
        Ok(arguments)
    }
}

impl Arguments {
    fn one(&mut self, input: ParseStream<'_>) -> Result<()> {
        let is_named = input.peek(Ident) && input.peek2(Token![=]) && !input.peek2(Token![==]);
        if !is_named {
            let value: Expr = input.parse()?;
            self.rest.push(quote!(#value));
            return Ok(());
        }
        let name: Ident = input.parse()?;
        input.parse::<Token![=]>()?;
        let place = match name.to_string().as_str() {
            "client" => &mut self.client,
            "within" => &mut self.within,
            "ttl" => &mut self.ttl,
            "options" => &mut self.options,
            "lease" => {
                let lease = input.parse()?;
                return once(&mut self.lease, &name, lease);
            }
            // Of the name: `"report-{id}", id = report.id`.
            _ => {
                let value: Expr = input.parse()?;
                self.rest.push(quote!(#name = #value));
                return Ok(());
            }
        };
        let value = input.parse()?;
        once(place, &name, value)
    }
}

fn once<T>(place: &mut Option<T>, name: &Ident, value: T) -> Result<()> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new(name.span(), format!("`{name}` stands here twice"))),
    }
}

pub(crate) fn expand(arguments: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let Arguments { name, rest, client, within, ttl, options, lease } = syn::parse2(arguments)?;
    let ItemFn { attrs, vis, sig, block, .. } = syn::parse2(function)?;
    let ReturnType::Type(_, output) = &sig.output else {
        let why = "a function under a lock returns a `Result`, since taking the lock can fail";
        return Err(Error::new(sig.ident.span(), why));
    };

    let client = client.map_or_else(
        || {
            let client = Ident::new("client", name.span());
            quote!(#client)
        },
        |client| quote!((#client)),
    );
    let options = options.map(|options| quote!(.options(#options)));
    let ttl = ttl.map(|ttl| quote!(.ttl(#ttl)));
    let is_async = sig.asyncness.is_some();
    let done = |future: TokenStream| {
        if is_async { quote!(#future.await) } else { quote!(::leasehold::Wait::wait(#future)) }
    };
    let take = match within {
        Some(within) => quote!(lock_within(#within)),
        None => quote!(lock()),
    };
    let lease = lease.map_or_else(|| quote!(_), |lease| quote!(#lease));
    // A body for threads stays in a closure that is not async, so that it can't await.
    let block = if is_async { quote!(#block) } else { quote!({ (move || -> #output #block)() }) };
    let body = quote!(async move |#lease: ::leasehold::HeldLease| -> #output #block);
    let (taken, run) =
        (done(quote!(__leasehold_lock.#take)), done(quote!(__leasehold_guard.run(#body))));
    // The type of the output is inferred from the function's own, so that errors are shown there.
    let ran = quote_spanned! {output.span()=>
        ::leasehold::locked::verdict(#run)
    };
    Ok(quote! {
        #(#attrs)*
        #vis #sig {
            let __leasehold_lock =
                #client.mutex(::std::format!(#name #(, #rest)*)) #options #ttl;
            let __leasehold_guard = match #taken {
                ::core::result::Result::Ok(guard) => guard,
                ::core::result::Result::Err(error) => {
                    return ::core::result::Result::Err(::core::convert::From::from(error));
                }
            };
            #ran
        }
    })
}

/// The error for the compiler.
pub(crate) fn refused(error: Error) -> TokenStream {
    error.into_compile_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(arguments: TokenStream, function: TokenStream) -> Result<String> {
        let item = expand(arguments, function)?;
        syn::parse2::<ItemFn>(item.clone())?;
        Ok(item.to_string().split_whitespace().collect())
    }

    fn why_not(arguments: TokenStream, function: TokenStream) -> String {
        expanded(arguments, function).unwrap_err().to_string()
    }

    fn function() -> TokenStream {
        quote!(
            pub(crate) async fn f(client: &Client) -> Result<(), E> {
                Ok(())
            }
        )
    }

    #[test]
    fn what_is_not_said_is_not_set() {
        let code = expanded(quote!("a"), function()).unwrap();
        assert!(code.contains("=client.mutex(::std::format!(\"a\"));"), "{code}");
        assert!(code.contains(".lock().await"), "{code}");
        assert!(code.starts_with("pub(crate)asyncfnf(client:&Client)->Result<(),E>{"), "{code}");
    }

    #[test]
    fn what_is_said_is_set_in_any_order() {
        let said = quote!(
            "{}-{id}",
            x.y,
            ttl = t(),
            id = 7 == 7,
            lease = l,
            client = self.c,
            options = &o,
            within = w,
        );
        let code = expanded(said, function()).unwrap();
        assert!(code.contains("(self.c).mutex(::std::format!(\"{}-{id}\",x.y,id=7==7))"), "{code}");
        assert!(code.contains(".options(&o).ttl(t())"), "{code}");
        assert!(code.contains(".lock_within(w).await"), "{code}");
        assert!(code.contains("asyncmove|l:"), "{code}");
    }

    #[test]
    fn a_function_for_threads_awaits_nothing() {
        let code = expanded(
            quote!("a"),
            quote!(
                fn f(client: &Client) -> Result<(), E> {
                    Ok(())
                }
            ),
        )
        .unwrap();
        assert!(!code.contains("await"), "{code}");
        assert_eq!(code.matches("::leasehold::Wait::wait(__leasehold").count(), 2, "{code}");
        assert!(code.contains("(move||->Result<(),E>{Ok(())})()"), "{code}");
    }

    #[test]
    fn each_mistake_is_reported() {
        assert!(why_not(quote!(), function()).contains("name comes first"));
        assert!(why_not(quote!(client = c), function()).contains("name comes first"));
        assert!(why_not(quote!("a", ttl = x, ttl = y), function()).contains("`ttl`"));
        assert!(
            why_not(
                quote!("a"),
                quote!(
                    async fn f() {}
                )
            )
            .contains("returns a `Result`")
        );
        assert!(expanded(quote!("a" "b"), function()).is_err());
        assert!(
            expanded(
                quote!("a"),
                quote!(
                    struct S;
                )
            )
            .is_err()
        );
    }
}
