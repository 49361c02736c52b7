"""The lab: experiments with the library. It needs the extra `[lab]`; the library never imports it."""
