"""Words that are too frequent in a language to show the subject of a text, such as articles and pronouns.

Contractions are listed in two parts, before and after the apostrophe.
"""

#: The stop words by language. Other languages have none.
STOP_WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "danish": """
            af alle alt at blev blive bliver da de dem den denne der deres det dette dig din disse dog du efter eller
            en end er et for fra ham han hans har havde have hende hendes her hos hun hvad hvis hvor i ikke ind jeg
            jer kan kunne man mange med meget men mig min mod når og også om op os over på sig sin skal skulle som
            så til ud under var ved vi vil ville være været
        """,
        "dutch": """
            aan al als bij dan dat de der deze die dit doch door dus een en er ge geen haar had hebben heb heeft hem
            het hier hij hoe hun ik in is je kan kon maar me meer men met mij mijn moet na naar niet niets nog nu of
            om omdat onder ons ook op over te tegen toch toen tot u uit uw van veel voor want waren was wat we wel
            werd wezen wie wij wil worden wordt zal ze zelf zich zij zijn zo zonder zou
        """,
        "english": """
            a about after all also am an and any are aren as at be because been before being both but by can cannot
            could couldn d did didn do does doesn doing don down during each for from further had hadn has hasn have
            haven having he her here hers him his how i if in into is isn it its ll m me more most my no nor not of
            off on once only or other our out over own re s same she should shouldn so some such t than that the
            their them then there these they this those through to too under until up ve very was wasn we were weren
            what when where which while who whom why will with won would wouldn you your
        """,
        "finnish": """
            ei eivät emme en et ette että hän häneen hänen he heidän ja jo joka jos jotka kanssa koska kuin kun me
            meidän mikä minä minun mukaan mutta myös ne niiden niin nyt ole oli olla olen olet olette olivat on ovat
            se sekä sen siitä sinä sinun tai tämä tämän te teidän tuo vaan vai
        """,
        "french": """
            à ai as au aussi aux avait avec avez avoir avons c ce ces cet cette d dans de des du elle elles en est et
            étaient était été être eu eux fut il ils j je l la le les leur leurs lui m ma mais me même mes moi mon n
            ne nos notre nous on ont ou où par pas plus pour qu quand que quel quelle quelles quels qui s sa sans se
            sera ses si son sont sous sur t ta te tes toi ton tu un une vos votre vous y
        """,
        "german": """
            aber alle allem allen aller alles als also am an auch auf aus bei bin bis bist da damit dann das daß dass
            dein dem den denn der des die dies diese dieser dieses doch dort du durch ein eine einem einen einer
            eines er es etwas euch euer für gegen habe haben hat hatte hatten hier hinter ich ihm ihn ihnen ihr ihre
            im in ins ist ja jede jeder jedes jetzt kann kein keine können mein mich mir mit muss nach nicht nichts
            noch nun nur ob oder ohne sehr sein seine sich sie sind so soll über um und uns unser unter vom von vor
            war waren was weil welche wenn wer werde werden wie wieder will wir wird wirst wo wurde wurden zu zum zur
            zwischen
        """,
        "italian": """
            a abbiamo ad agli ai al alla alle allo anche avere c che chi ci come con così cui d da dagli dai dal
            dalla dalle dallo degli dei del dell della delle dello di dove e è ed era erano essere fra gli ha hanno
            ho i il in io l la le lei li lo loro lui ma mi mia mio ne negli nei nel nell nella nelle nello noi non
            nostro o per perché più quale quando quella quelle quelli quello questa queste questi questo se sei si
            sia siamo siete sono sta stata stato su sua sue sugli sui sul sulla sulle suo suoi ti tra tu tua tuo un
            una uno vi voi
        """,
        "norwegian": """
            alle at av både da de deg dei dem den denne der deres det dette di disse du eg eller en enn er et ett
            etter for fra før ha hadde han hans har hennes her hun hva hvem hver hvis hvor hvordan i ikke inn ja jeg
            kan kunne kom man mange med meg men mer min mot når nå og også om opp oss over på seg selv sin sine sitt
            skal skulle slik som så til ut var ved vi vil ville vår være vært
        """,
        "portuguese": """
            a ao aos as à às até com como da das de dela dele deles depois do dos e é ela elas ele eles em entre era
            eram essa esse esta está estão estas este estes eu foi foram há isso isto já lhe lhes mais mas me mesmo
            meu minha muito na não nas nem no nos nós nossa nosso num numa o os ou para pela pelas pelo pelos por
            quando que quem são se sem ser será seu seus só sua suas também te tem têm tinha tu um uma você
        """,
        "russian": """
            а без более больше будет бы был была были было быть в вам вас весь во вот все всего всех вы где да даже
            для до его ее если есть еще же за здесь и из или им их к как ко когда кто ли либо мне может мы на над
            надо наш не него нее нет ни них но ну о об однако он она они оно от очень по под при с со так также такой
            там те тем то того тоже той только том ты у уже хотя чего чем что чтобы эта эти это этого этой этом этот я
        """,
        "spanish": """
            a al algo algunas algunos ante antes aquí así aún aunque como con contra cual cuando de del desde donde
            durante e el él ella ellas ellos en entre era eran es esa ese eso esta está están estas este esto estos
            fue fueron ha había han hasta hay la las le les lo los más me mi mis mucho muy nada ni no nos nosotros o
            os otra otro para pero poco por porque que qué quien se sea ser si sí sin sobre son su sus también tan
            te tiene tienen todo todos tu tú tus un una uno unos y ya yo
        """,
        "swedish": """
            alla allt att av blev bli blir de dem den denna deras det detta dig din dina du där då efter ej eller en
            er ett från för ha hade han hans har henne hennes hon honom hur här i icke ingen inom inte jag kan kunde
            man med mellan men mig min mot mycket ni nu när någon något några och om oss på samma sedan sig sin
            själv skulle som så till under upp ut utan vad var vara varför varit vem vi vid vilken är över
        """,
    }.items()
}
