"""The choice of draft length: what it costs, what it will bring, and when not to speculate.

Units and words of all files here:

    ms             wall milliseconds; every cost is measured in them
    row            one position in a decode: a sequence's last token, or a drafted one. A decode of n rows takes T(n) ms
    price          tokens that a ms is worth: plain decoding of n sequences makes n tokens in T(n) ms, so n / T(n)
    cost           ms times price: the tokens that plain decoding would have made in that time
    survival       the chance that a drafted token and all before it are accepted: expected tokens of a draft are its sum
    gain           tokens that a round of one sequence brings beyond what plain decoding would have made in its time
    worth          tokens that an accepted token counts for: less than 1 if the draft must read it again
    loss, credit   tokens that drafts cost a text and did not bring; tokens that a trial may cost
    pace           tokens of a round, the target's own included
    scale, k       how slow the machine is just now; how much the rows beyond the first cost, both in units of what was assumed
"""
