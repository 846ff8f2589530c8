# SPDX-License-Identifier: Apache-2.0
"""The phrases that .ci/prose.py looks for, and the words to write instead.

Regular expressions ignore case. A space also matches the end of a line. ^ matches the start of a
paragraph, list item or table cell.
"""

BE = "(?:is|are|was|were)"
VERB = f"(?:{BE}|has|have|does|do|may|must|can|needs?|costs?|comes?|goes|takes?)"
START = "(?:^|[.;:(] )"
NO_QUESTION = r"(?![^.?]*\?)"
OF = "(?:of|by|from|for|in|to|with|than)"
THING = "(?:copy|values?|flags?|bytes?|ranks?|threads?|files?|numbers?|rows?|messages?|once)"
UNIT = "(?:rank|host|step|call|message|group|member|op|device|node|round|axis|process|file)"
NOUN = "(?:th[eo]se|it|that|ranks?|group|host|memory|device|name|thread|words?)"
FIRST = "(?:What|Whether|Who|Whose|Where|Of|As|How|By|Which|That|Those|So|Its)"

PATTERNS = [
    ("bare-who", rf"{START}who(?:ever)? (?!are you){NO_QUESTION}", "a rank, the caller, you"),
    ("bare-who", r"\b(?:for|of|to|by|from|than|tells?) who\b", "a rank, the caller, you"),
    ("a-for-per", rf"\b{THING} an? {UNIT}\b(?! (?:of|that|has|is))", "one copy per rank"),
    ("is-no", rf"(?<!there ){BE} no (?!longer|more|less)\w+", "is not a rank, are not arrays"),
    ("is-no", rf"\b{BE} (?-i:none)\b(?! of)", "is not one, does not exist"),
    ("also-if", r"\balso (?:if|where|when|beside|over|those|of)\b", "even if, including"),
    ("but-for", r"[,;(] ?but (?:for|of|over|by) |\b(?:all|nothing) but\b", "except"),
    ("goes-on", r"\b(?:go|goes|going|went) on\b(?! to)", "continue, resume"),
    ("archaic", r"\b(?:anew|meanwhile|amid|thereby)\b", "again, until then, therefore"),
    ("archaic", r"\b(?:as ever|in vain|for ever|of (?:then|now|before))\b", "as before, forever"),
    ("personified", r"\b(?:hears?|heard|tells?|told)\b", "report, return, be notified"),
    ("personified", r"\bmend(?:s|ed|ing)?\b", "fix, repair"),
    ("stands-lies", r"\b(?:stands?(?! for)|stood|lies|lay)\b", "is, is stored in, contains"),
    ("behind", r"\bbehind\b(?! an? (?:proxy|firewall))", "after"),
    ("what-clause", rf"{START}(?-i:What) (?!is it){NO_QUESTION}(?:[\w'-]+,? )+?{VERB}\b", "a noun"),
    ("what-clause", rf"\b{OF} what (?:{VERB}|it|they|an?|the|all|each)\b", "a noun"),
    ("bare-pronoun", r"\b(?:all|what|who) else\b", "the noun: the other options"),
    ("bare-pronoun", r"\b(?:nobody|somebody)\b", "no rank, another user"),
    ("bare-pronoun", r"(?:, of which|^Of (?:these|those|which))\b", "a second sentence"),
    ("so-many", r"\bso (?:many|much)\b(?! that)|\bhow many there are\b", "the number of"),
    ("alone", rf"\b{NOUN} alone\b", "only, before the word that it limits"),
    ("there", rf"\b{BE} there\b(?! (?:an?|any|no|to)\b){NO_QUESTION}", "exists, is available"),
    ("alike", r"\b(?:un)?alike\b", "equal, different, in the same way"),
    ("metaphor", r"\b(?:house rules?|the house|doors?|rooms?)\b", "the field's term"),
    ("own-term", r"\b(?:two-byte|in two bytes|a way around)\b", "the glossary's term"),
    ("own-term", r"\bin the place of\b", "instead of"),
    ("own-term", r"\bsays? (?:so|which|where|how|what|whether)\b", "report, name"),
    ("docstring-start", rf"^{FIRST}\b(?!-)", "an imperative verb, or an article and a noun"),
]
"""The name of each pattern, a regular expression, and the words to write instead."""

NAMES = (
    "told|here|there|apart|within|passed|planned|closed|moved|aligned|shown|replaced|fitted|wide|whole"
    "|lengths|cuts|owned|remade|written|made|found|given|asked|meant|joined|taken|kept|held|seen|said"
    "|agreed|refused|counted|numbered|renumbered|explained|interrupted|untraced|premultiplied|packed"
    "|places|ahead|beside|behind|anyway|anew|late|missed"
)
"""Names that say nothing about a function or class, as alternatives of a regular expression."""
