"""The choice of draft length: what a draft costs, what it is expected to bring, and when not to speculate.

Units and terms used in this package:

    ms             wall milliseconds; every cost is measured in them
    row            one position in a decode: a sequence's last token, or a drafted one. A decode of n rows takes T(n) ms
    price          tokens that a ms is worth: plain decoding of n sequences makes n tokens in T(n) ms, so n / T(n)
    cost           ms times price: the tokens that plain decoding would have made in that time
    survival       chance that a drafted token and all before it are accepted; a draft's expected tokens are the sum of these
    gain           tokens that a round brings a sequence beyond what plain decoding would have made in the same time
    loss, credit   tokens that drafts cost a sequence and did not bring; tokens that a trial may cost
    pace           tokens per round, the target's own included
    scale, k       how slow the machine is now; how much rows beyond the first cost; both relative to what was assumed
"""
